// What memory gives: the sum of all words of some chunks, read in the order of a table, and nothing else.
//
// benches/cpu_attention.py compares kernels with it: the same blocks in the same order on as many threads. Chunk by chunk,
// with a prefetch 2 KB ahead that crosses into the next chunk, four sums so that no addition waits for another.
#include <cstdint>

namespace {

typedef uint64_t Words __attribute__((vector_size(64)));

uint64_t read_range(const char* base, const int32_t* table, int64_t first, int64_t end, int64_t chunk_bytes) {
  constexpr int64_t kAhead = 2048;
  Words sums[4] = {};
  for (int64_t i = first; i < end; ++i) {
    const char* chunk = base + table[i] * chunk_bytes;
    const char* next = i + 1 < end ? base + table[i + 1] * chunk_bytes : chunk;
    for (int64_t at = 0; at < chunk_bytes; at += 256) {
      const int64_t ahead = at + kAhead;
      const char* wanted = ahead < chunk_bytes ? chunk + ahead : next + (ahead - chunk_bytes);
      for (int line = 0; line < 4; ++line) {
        __builtin_prefetch(wanted + 64 * line, 0, 3);
        sums[line] += *reinterpret_cast<const Words*>(chunk + at + 64 * line);
      }
    }
  }
  const Words all = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t total = 0;
  for (int i = 0; i < 8; ++i) total += all[i];
  return total;
}

}  // namespace

// Chunks [first, end) of the table; they are multiples of 256 bytes and aligned to 64. Threads are the caller's, kept between
// calls as torch keeps its own. (With threads started for each call, kernels came out faster than the read.)
extern "C" uint64_t looseleaf_read(const char* base, const int32_t* table, int64_t first, int64_t end, int64_t chunk_bytes) {
  return read_range(base, table, first, end, chunk_bytes);
}
