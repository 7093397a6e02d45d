// Shared memory: each access is checked against what other threads have done to the same bytes.
//
// Two accesses of different threads, one of them a write, must have a barrier between them: __syncthreads, or __syncwarp
// of the whole warp where both are of one warp. Barriers are counted in epochs, of the block and of each warp, and two
// bytes remember the epochs of their last write and read. An asynchronous copy counts as a write when it is issued and
// again when it is waited for.
#include <cstring>
#include <string>

#include "block.h"
#include "thread_sanitizer.h"

namespace looseleaf::emu {
namespace {

struct Span {
  Granule* first;
  Granule* end;
  size_t offset;
};

Span span_of(const void* address, size_t bytes, Place place) {
  Block& block = running();
  const auto offset = static_cast<std::ptrdiff_t>(static_cast<const char*>(address) - block.shared);
  if (offset < 0 || static_cast<size_t>(offset) + bytes > block.shared_bytes)
    fail(place, "shared memory: byte " + std::to_string(offset) + " is out of range, " + std::to_string(bytes) +
                    " bytes of " + std::to_string(block.shared_bytes));
  if (offset % static_cast<std::ptrdiff_t>(bytes) != 0)
    fail(place, "shared memory: byte " + std::to_string(offset) + " is misaligned for " + std::to_string(bytes) + " bytes");
  Granule* first = block.granules.data() + offset / 2;
  Granule* end = block.granules.data() + (static_cast<size_t>(offset) + bytes + 1) / 2;
  for (Granule* granule = first; granule < end; ++granule)
    if (granule->block_serial != block.serial) *granule = Granule{.block_serial = block.serial};
  return {first, end, static_cast<size_t>(offset)};
}

[[noreturn]] void fail_in_race(const Span& span, const Granule* at, const char* own, const char* others, int32_t other,
                               Place place) {
  const std::string who = other > 0                        ? "thread " + std::to_string(other - 1)
                          : other == Granule::kManyWarps ? std::string("threads of several warps")
                                                           : std::string("other lanes of a warp");
  fail(place, "race in shared memory: " + std::string(own) + " of byte " +
                  std::to_string(span.offset + 2 * static_cast<size_t>(at - span.first)) + " without a barrier after the " +
                  others + " by " + who);
}

int32_t warp_of(int32_t thread) { return (thread - 1) / 32 + 1; }

struct Now {
  int32_t thread, warp;
  uint32_t block_epoch, warp_epoch;
  Now() {
    const Block& block = running();
    thread = static_cast<int32_t>(block.current->number) + 1;
    warp = warp_of(thread);
    block_epoch = block.epoch;
    warp_epoch = block.warps[block.current->warp()].epoch;
  }
  bool is_after_write(const Granule& g) const {
    return g.writer == 0 || g.writer == thread || g.write_block_epoch != block_epoch ||
           (warp_of(g.writer) == warp && g.write_warp_epoch != warp_epoch);
  }
  bool is_after_reads(const Granule& g) const {
    return g.reader == 0 || g.reader == thread || g.read_block_epoch != block_epoch ||
           (g.reader != Granule::kManyWarps && g.reader_warp == warp && g.read_warp_epoch != warp_epoch);
  }
};

void write(const Span& span, const Now& now, Place place) {
  for (Granule* g = span.first; g < span.end; ++g) {
    if (!now.is_after_write(*g)) fail_in_race(span, g, "write", "write", g->writer, place);
    if (!now.is_after_reads(*g)) fail_in_race(span, g, "write", "read", g->reader, place);
    g->writer = now.thread;
    g->write_block_epoch = now.block_epoch;
    g->write_warp_epoch = now.warp_epoch;
    g->reader = 0;
  }
}

void check_arrived(const Span& span, Place place) {
  for (Granule* g = span.first; g < span.end; ++g)
    if (g->copies != 0)
      fail(place, "shared memory: byte " + std::to_string(span.offset + 2 * static_cast<size_t>(g - span.first)) +
                      " is used before the cp.async of thread " + std::to_string(g->copier - 1) + " was waited for");
}

}  // namespace

void read_shared(const void* address, size_t bytes, Place place) {
  const Span span = span_of(address, bytes, place);
  const Now now;
  check_arrived(span, place);
  for (Granule* g = span.first; g < span.end; ++g) {
    if (g->writer == 0) fail(place, "shared memory: nothing was written to byte " +
                                        std::to_string(span.offset + 2 * static_cast<size_t>(g - span.first)));
    if (!now.is_after_write(*g)) fail_in_race(span, g, "read", "write", g->writer, place);
    const bool is_first = g->reader == 0 || g->read_block_epoch != now.block_epoch ||
                          (g->reader != Granule::kManyWarps && g->reader_warp == now.warp &&
                           g->read_warp_epoch != now.warp_epoch);
    if (is_first || g->reader == now.thread) {
      g->reader = now.thread;
    } else {
      g->reader = g->reader != Granule::kManyWarps && g->reader_warp == now.warp ? Granule::kManyLanes : Granule::kManyWarps;
    }
    g->reader_warp = now.warp;
    g->read_block_epoch = now.block_epoch;
    g->read_warp_epoch = now.warp_epoch;
  }
}

void write_shared(const void* address, size_t bytes, Place place) {
  const Span span = span_of(address, bytes, place);
  check_arrived(span, place);
  write(span, Now(), place);
}

void check_alignment(const void* address, size_t bytes, Place place) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0)
    fail(place, "global memory: an address is misaligned for " + std::to_string(bytes) + " bytes");
}

void write_global(void* address, size_t bytes, Place place) {
  check_alignment(address, bytes, place);
  watched::write(address, bytes);  // compilers do not report stores of several words
}

void copy_async(void* target, const void* source, int bytes, int source_bytes, Place place) {
  const Span span = span_of(target, static_cast<size_t>(bytes), place);
  check_alignment(source, static_cast<size_t>(bytes), place);
  check_arrived(span, place);
  write(span, Now(), place);
  Thread& thread = *running().current;
  for (Granule* g = span.first; g < span.end; ++g) {
    ++g->copies;
    g->copier = static_cast<int32_t>(thread.number) + 1;
  }
  std::memset(target, 0xFF, static_cast<size_t>(bytes));
  thread.copies.push_back(
      {static_cast<char*>(target), static_cast<const char*>(source), bytes, source_bytes, thread.open_group, place});
  counts().async_copies += source_bytes > 0;
}

void commit_copies() { ++running().current->open_group; }

void wait_copies(int allowed_groups, Place place) {
  Thread& thread = *running().current;
  size_t kept = 0;
  for (const AsyncCopy& copy : thread.copies) {
    if (copy.group >= thread.open_group - allowed_groups) {
      thread.copies[kept++] = copy;
      continue;
    }
    const Span span = span_of(copy.target, static_cast<size_t>(copy.bytes), place);
    for (Granule* g = span.first; g < span.end; ++g) --g->copies;
    write(span, Now(), copy.place);
    std::memset(copy.target, 0, static_cast<size_t>(copy.bytes));
    std::memcpy(copy.target, copy.source, static_cast<size_t>(copy.source_bytes));
  }
  thread.copies.resize(kept);
}

}  // namespace looseleaf::emu
