// Launches that tests recorded, again and without Python: for sanitizers. Each operator call has memory of its own, of
// exactly the bytes that it was given, and what it leaves there must be what it left when it was recorded.
//
// File, in words of 8 bytes: calls, each with its spans (address, bytes, whether there is content, content, whether there
// is a result, result) and its launches (bytes of the kernel's name, name, grid x and y, threads, shared memory, bytes of
// parameters, parameters). Everything is padded to words.
#include "replay.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

namespace looseleaf::emu {
namespace {

struct Reader {
  std::ifstream file;

  int64_t word() {
    int64_t value = 0;
    if (!file.read(reinterpret_cast<char*>(&value), 8)) throw std::runtime_error("the recording ends early");
    return value;
  }
  std::vector<char> bytes(int64_t count) {
    std::vector<char> content(static_cast<size_t>((count + 7) / 8 * 8));
    if (!file.read(content.data(), static_cast<std::streamsize>(content.size())))
      throw std::runtime_error("the recording ends early");
    content.resize(static_cast<size_t>(count));
    return content;
  }
};

// Memory that stood at `address` when it was recorded; here it has the same alignment and the same end.
struct Span {
  uint64_t address = 0;
  int64_t count = 0;
  std::unique_ptr<char, void (*)(void*)> memory{nullptr, std::free};
  char* start = nullptr;
  std::vector<char> result;
};

constexpr size_t kAlignment = 256;

Span read_span(Reader& reader) {
  Span span;
  span.address = static_cast<uint64_t>(reader.word());
  span.count = reader.word();
  const size_t before = span.address % kAlignment;
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, before + static_cast<size_t>(span.count)) != 0) throw std::bad_alloc();
  span.memory.reset(static_cast<char*>(memory));
  span.start = static_cast<char*>(memory) + before;
  std::memset(span.start, 0xFF, static_cast<size_t>(span.count));
  if (reader.word() != 0) std::memcpy(span.start, reader.bytes(span.count).data(), static_cast<size_t>(span.count));
  if (reader.word() != 0) span.result = reader.bytes(span.count);
  return span;
}

// Words of the parameters that point into a span point into its memory here.
void relocate(std::vector<char>& parameters, const std::vector<Span>& spans) {
  for (size_t at = 0; at + 8 <= parameters.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, parameters.data() + at, 8);
    for (const Span& span : spans) {
      if (word < span.address || word >= span.address + static_cast<uint64_t>(span.count)) continue;
      char* const target = span.start + (word - span.address);
      std::memcpy(parameters.data() + at, &target, 8);
      break;
    }
  }
}

void replay_launch(Reader& reader, const std::vector<Span>& spans) {
  const std::vector<char> name = reader.bytes(reader.word());
  const auto x = static_cast<unsigned>(reader.word()), y = static_cast<unsigned>(reader.word());
  const auto threads = static_cast<unsigned>(reader.word());
  const auto shared_bytes = static_cast<size_t>(reader.word());
  std::vector<char> parameters = reader.bytes(reader.word());
  relocate(parameters, spans);
  replays().at(std::string(name.begin(), name.end()))(parameters.data(), {x, y}, threads, shared_bytes);
}

bool replay_call(Reader& reader) {
  std::vector<Span> spans;
  for (int64_t left = reader.word(); left > 0; --left) spans.push_back(read_span(reader));
  for (int64_t left = reader.word(); left > 0; --left) replay_launch(reader, spans);
  for (const Span& span : spans)
    if (!span.result.empty() && std::memcmp(span.start, span.result.data(), span.result.size()) != 0) return false;
  return true;
}

}  // namespace
}  // namespace looseleaf::emu

// Arguments: the file, order, seed.
int main(int argc, char** argv) {
  using namespace looseleaf::emu;
  if (argc < 2) return 2;
  settings().order = static_cast<Order>(argc > 2 ? std::atoi(argv[2]) : 0);
  settings().seed = argc > 3 ? static_cast<uint64_t>(std::atoi(argv[3])) : 0;
  Reader reader{std::ifstream(argv[1], std::ios::binary)};
  int64_t num_right = 0;
  const int64_t num_calls = reader.word();
  try {
    for (int64_t call = 0; call < num_calls; ++call) num_right += replay_call(reader) ? 1 : 0;
  } catch (const std::exception& error) {
    std::printf("stopped: %s\n", error.what());
  }
  std::printf("%ld of %ld calls\n", static_cast<long>(num_right), static_cast<long>(num_calls));
  return num_right == num_calls ? 0 : 1;
}
