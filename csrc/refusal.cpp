// See refusal.h.
#include "refusal.h"

#include <cstdio>
#include <stdexcept>
#include <utility>

namespace looseleaf {

Piece::Piece(const char* text_) : text(text_) {}
Piece::Piece(std::string text_) : text(std::move(text_)) {}
Piece::Piece(int value) : text(std::to_string(value)) {}
Piece::Piece(int64_t value) : text(std::to_string(value)) {}
Piece::Piece(size_t value) : text(std::to_string(value)) {}
Piece::Piece(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  text = buffer;
}

void refuse(std::initializer_list<Piece> pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  throw std::runtime_error(text);
}

}  // namespace looseleaf
