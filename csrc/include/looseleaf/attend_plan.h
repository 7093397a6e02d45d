// Who does what in one call of `attend` on a GPU, decided on the GPU: the host knows no length, so a captured graph stays
// right while lengths and tables change in place.
//
// The query rows of one KV head of one sequence (tokens x group) are cut into row tiles of `tile_rows`. A row tile and a KV
// head make an item; an item's keys are cut into units of kUnitTokens, at multiples of kUnitTokens of the sequence. All units of all
// items stand in one line, and each of `num_blocks` thread blocks takes an equal stretch of it (within one unit). So a
// block has at most two items that it shares with others: the one it begins in, and the one it ends in. Their states go to
// the block's own two places in the workspace, whose size therefore depends on the number of blocks alone.
//
// batch_invariant: a stretch begins where an item does, so no item is cut and no result depends on what else is in a batch.
// The sums are made by plan_kernel (attend_plan_kernel.h), before everything else.
#pragma once

#include "looseleaf/attend_arguments.h"
#include "looseleaf/device.h"

namespace looseleaf::cuda {

constexpr int64_t kUnitTokens = 64;
constexpr int64_t kLeastUnits = 2;  // of a stretch: shorter ones cost more in combining than they save

struct Plan {
  int64_t* first_tile;  // [num_seqs + 1] row tiles before each sequence
  int64_t* first_unit;  // [max_tiles + 1] units of one KV head before each row tile
  float* states;        // [2 x num_blocks][tile_rows][v dim + 2]: sums, then largest score and weight
  int64_t num_blocks;
  int64_t tile_rows;
};

// Row tiles of a call at most, whatever its lengths are.
LOOSELEAF_INLINE int64_t max_row_tiles(const AttendArguments& a, int64_t tile_rows) {
  return a.num_rows * a.group() / tile_rows + a.num_seqs;
}

struct Item {
  int64_t seq, kv_head;
  int64_t first_row, num_rows;    // of the sequence's tokens x group rows
  int64_t first_key, end_key;     // that any of its rows sees; empty where end_key <= first_key
  int64_t first_unit, num_units;  // in the line
};

// Rows and keys of row tile `tile` of a sequence.
LOOSELEAF_INLINE Item item_of(const AttendArguments& a, int64_t tile_rows, int64_t seq, int64_t tile) {
  Item item = {};
  const int64_t group = a.group(), rows = a.query_len(seq) * group;
  item.seq = seq;
  item.first_row = tile * tile_rows;
  item.num_rows = rows - item.first_row < tile_rows ? rows - item.first_row : tile_rows;
  const int64_t last = (item.first_row + item.num_rows - 1) / group;
  item.first_key = a.first_key(a.position(seq, item.first_row / group));
  item.end_key = a.end_key(seq, a.position(seq, last));
  const int64_t units =
      item.end_key > item.first_key ? (item.end_key + kUnitTokens - 1) / kUnitTokens - item.first_key / kUnitTokens : 0;
  item.num_units = units > 0 ? units : 1;  // somebody has to write that its rows see nothing
  return item;
}

// The last index in [0, count) whose sum is at most `value`.
LOOSELEAF_DEVICE int64_t search(const int64_t* sums, int64_t count, int64_t value) {
  int64_t first = 0, end = count;
  while (first + 1 < end) {
    const int64_t middle = (first + end) / 2;
    (sums[middle] <= value ? first : end) = middle;
  }
  return first;
}

LOOSELEAF_DEVICE int64_t num_units(const AttendArguments& a, const Plan& plan) {
  return plan.first_unit[plan.first_tile[a.num_seqs]] * a.kv_heads;
}

// The item that holds this unit of the line.
LOOSELEAF_DEVICE Item find_item(const AttendArguments& a, const Plan& plan, int64_t unit) {
  const int64_t tile = search(plan.first_unit, plan.first_tile[a.num_seqs], unit / a.kv_heads);
  const int64_t seq = search(plan.first_tile, a.num_seqs, tile);
  Item item = item_of(a, plan.tile_rows, seq, tile - plan.first_tile[seq]);
  const int64_t first = plan.first_unit[tile] * a.kv_heads;
  item.kv_head = (unit - first) / item.num_units;
  item.first_unit = first + item.kv_head * item.num_units;
  return item;
}

// Where the stretch of block `block` begins; that of the next block is its end.
LOOSELEAF_DEVICE int64_t stretch_begin(const AttendArguments& a, const Plan& plan, int64_t block) {
  const int64_t units = num_units(a, plan), most = units / kLeastUnits;
  const int64_t used = most < 1 ? 1 : most < plan.num_blocks ? most : plan.num_blocks;
  if (block >= used) return units;
  const int64_t begin = units * block / used;
  if (!a.batch_invariant || begin == 0) return begin;
  const Item item = find_item(a, plan, begin);
  return item.first_unit == begin ? begin : item.first_unit + item.num_units;
}

// Part of an item: units [first, end) of it.
struct Stretch {
  Item item;
  int64_t first, end;
  LOOSELEAF_INLINE bool is_whole() const { return first == 0 && end == item.num_units; }
  LOOSELEAF_INLINE int64_t first_token() const {
    const int64_t token = (item.first_key / kUnitTokens + first) * kUnitTokens;
    return token > item.first_key ? token : item.first_key;
  }
  LOOSELEAF_INLINE int64_t end_token() const {
    const int64_t token = (item.first_key / kUnitTokens + end) * kUnitTokens;
    return token < item.end_key ? token : item.end_key;
  }
};

// The part of the line in [begin, end) that lies in the item of `begin`.
LOOSELEAF_DEVICE Stretch stretch_at(const AttendArguments& a, const Plan& plan, int64_t begin, int64_t end) {
  Stretch stretch = {find_item(a, plan, begin), 0, 0};
  const Item& item = stretch.item;
  stretch.first = begin - item.first_unit;
  stretch.end = end - item.first_unit < item.num_units ? end - item.first_unit : item.num_units;
  return stretch;
}

}  // namespace looseleaf::cuda
