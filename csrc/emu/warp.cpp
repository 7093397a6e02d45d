// Warp operations: what all lanes of a mask do together. The last to arrive computes for all.
#include <cstring>
#include <string>

#include "block.h"
#include "thread_sanitizer.h"
#include "looseleaf/element.h"

namespace looseleaf::emu {
namespace {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

void pass_barrier(Lanes& lanes) {
  Block& block = running();
  Warp& warp = block.warps[block.current->warp()];
  bool is_whole = true;
  for (unsigned l = 0; l < 32; ++l) is_whole = is_whole && (lanes[l] != nullptr || (warp.live >> l & 1u) == 0);
  if (is_whole) ++warp.epoch;  // a barrier of some lanes orders less than the epochs can say: it orders nothing here
}

void exchange(Lanes& lanes) {
  for (Thread* thread : lanes)
    if (thread != nullptr) std::memcpy(thread->output, lanes[thread->detail]->input, 8);
}

void vote(Lanes& lanes) {
  uint32_t votes = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes[l] != nullptr && lanes[l]->detail != 0) votes |= 1u << l;
  for (Thread* thread : lanes)
    if (thread != nullptr) std::memcpy(thread->output, &votes, 4);
}

struct Fragments {
  uint32_t a[4], b[2];
  float c[4];
};

template <class T>
float element(uint32_t pair, int which) {
  return to_float(T{static_cast<uint16_t>(pair >> (16 * which))});
}

// Lane 4g + t holds: of A rows g, g + 8 and columns 2t, 2t + 1 (+ 8); of B rows 2t, 2t + 1 (+ 8) and column g; of C rows
// g, g + 8 and columns 2t, 2t + 1.
template <class T>
void multiply(Lanes& lanes) {
  float a[16][16], b[16][8], c[16][8];
  for (int l = 0; l < 32; ++l) {
    Fragments own;
    std::memcpy(&own, lanes[l]->input, sizeof own);
    const int g = l / 4, t = l % 4;
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][2 * t + half + 8 * (r / 2)] = element<T>(own.a[r], half);
      for (int r = 0; r < 2; ++r) b[2 * t + half + 8 * r][g] = element<T>(own.b[r], half);
    }
    for (int r = 0; r < 4; ++r) c[g + 8 * (r / 2)][2 * t + r % 2] = own.c[r];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int l = 0; l < 32; ++l) {
    float* d = static_cast<float*>(lanes[l]->output);
    for (int r = 0; r < 4; ++r) d[r] = c[l / 4 + 8 * (r / 2)][2 * (l % 4) + r % 2];
  }
  ++counts().matrix_products;
}

template <bool kIsTransposed>
void load_matrices(Lanes& lanes) {
  uint16_t matrices[4][8][8];
  for (int m = 0; m < 4; ++m) {
    uint32_t banks = 0;
    for (int row = 0; row < 8; ++row) {
      const void* address = lanes[m * 8 + row]->input;
      std::memcpy(matrices[m][row], address, 16);
      const uint32_t bank = 1u << (reinterpret_cast<uintptr_t>(address) / 16 % 8);
      if ((banks & bank) != 0) ++counts().bank_conflicts;
      banks |= bank;
    }
  }
  for (int l = 0; l < 32; ++l) {
    uint32_t* out = static_cast<uint32_t*>(lanes[l]->output);
    for (int m = 0; m < 4; ++m) {
      const int g = l / 4, t = 2 * (l % 4);
      const uint16_t low = kIsTransposed ? matrices[m][t][g] : matrices[m][g][t];
      const uint16_t high = kIsTransposed ? matrices[m][t + 1][g] : matrices[m][g][t + 1];
      out[m] = uint32_t{high} << 16 | low;
    }
  }
  ++counts().matrix_loads;
}

void transpose(Lanes& lanes) {
  uint16_t matrix[8][8];
  for (int l = 0; l < 32; ++l) std::memcpy(&matrix[l / 4][2 * (l % 4)], lanes[l]->input, 4);
  for (int l = 0; l < 32; ++l) {
    const uint16_t pair[2] = {matrix[2 * (l % 4)][l / 4], matrix[2 * (l % 4) + 1][l / 4]};
    std::memcpy(lanes[l]->output, pair, 4);
  }
}

}  // namespace

void sync_warp(uint32_t mask, Place place) {
  const Block& block = running();
  const unsigned warp = block.current->warp();
  const void* const meeting = block.meeting(1 + warp, block.warps[warp].epoch);
  if (mask == kAllLanes) watched::arrive(meeting);
  running().warp_operation("__syncwarp", pass_barrier, mask, nullptr, nullptr, 0, place);
  if (mask == kAllLanes) watched::leave(meeting);
}

uint64_t shuffle(uint32_t mask, uint64_t bits, unsigned source, Place place) {
  if ((mask >> source & 1u) == 0)
    fail(place, "shuffle reads lane " + std::to_string(source) + ", which its mask does not name");
  uint64_t result = 0;
  running().warp_operation("shuffle", exchange, mask, &bits, &result, source, place);
  return result;
}

uint32_t ballot(uint32_t mask, bool is_set, Place place) {
  uint32_t result = 0;
  running().warp_operation("ballot", vote, mask, nullptr, &result, is_set ? 1 : 0, place);
  return result;
}

void matrix_product(bool is_bfloat, float d[4], const uint32_t a[4], const uint32_t b[2], Place place) {
  Fragments own;
  std::memcpy(own.a, a, sizeof own.a);
  std::memcpy(own.b, b, sizeof own.b);
  std::memcpy(own.c, d, sizeof own.c);
  running().warp_operation("mma", is_bfloat ? multiply<BFloat> : multiply<Half>, kAllLanes, &own, d, 0, place);
}

void matrix_load(uint32_t out[4], const void* row, bool is_transposed, Place place) {
  read_shared(row, 16, place);
  watched::read(row, 16);
  running().warp_operation("ldmatrix", is_transposed ? load_matrices<true> : load_matrices<false>, kAllLanes, row, out, 0,
                           place);
}

uint32_t matrix_transpose(uint32_t value, Place place) {
  uint32_t result = 0;
  running().warp_operation("movmatrix", transpose, kAllLanes, &value, &result, 0, place);
  return result;
}

}  // namespace looseleaf::emu
