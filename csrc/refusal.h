// Refusals: where a condition does not hold, the call ends with a text that names the argument and its numbers.
//
// Torch has a macro for it too, of which each use instantiates a stream of its own: a second of compilation in all, and
// file names in front of what a user reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace looseleaf {

struct Piece {
  std::string text;
  Piece(const char* text_);
  Piece(std::string text_);
  Piece(int value);
  Piece(int64_t value);
  Piece(size_t value);
  Piece(double value);
};

// Throws a std::runtime_error, which arrives in Python as a RuntimeError.
[[noreturn]] void refuse(std::initializer_list<Piece> pieces);

}  // namespace looseleaf

#define LOOSELEAF_CHECK(condition, ...)                                            \
  do {                                                                             \
    if (__builtin_expect(!(condition), 0)) ::looseleaf::refuse({__VA_ARGS__});     \
  } while (false)
