// The scheduler: threads of a block take turns at barriers and warp operations, in the order of the settings.
#include "block.h"
#include "thread_sanitizer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>

namespace looseleaf::emu {
namespace {

thread_local Block* block_of_thread = nullptr;

// Addresses where threads meet, for ThreadSanitizer: each block of a launch has some of its own, since blocks do not meet.
constexpr unsigned kMeetings = 2 * (1 + 32 + 1), kBegin = 33, kMostBlocks = 1024;
constexpr unsigned kBlocksApart = 4;
char meetings[kMostBlocks * kMeetings];
char launch_begins, launch_ends;

std::string text_of(Place place) {
  const char* slash = std::strrchr(place.file_name(), '/');
  return std::string(slash == nullptr ? place.file_name() : slash + 1) + ":" + std::to_string(place.line());
}

bool is_same(Place a, Place b) { return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0; }

std::string text_of(Dim3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

std::string hex(uint32_t mask) {
  char text[16];
  snprintf(text, sizeof text, "%08x", mask);
  return text;
}

}  // namespace

Block& running() { return *block_of_thread; }

Settings& settings() {
  static Settings settings;
  return settings;
}

Elsewhere& elsewhere() {
  static Elsewhere elsewhere;
  return elsewhere;
}

Counts& counts() {
  static Counts counts;
  return counts;
}

Dim3 thread_index() { return running().current->index; }
Dim3 block_index() { return running().index; }
Dim3 block_size() { return running().size; }
Dim3 grid_size() { return running().grid; }
unsigned lane() { return running().current->lane(); }
char* shared_memory() { return running().shared; }

void fail(Place place, const std::string& what) {
  Block& block = running();
  block.error = "block " + text_of(block.index) + ", thread " + text_of(block.current->index) + ", " + text_of(place) +
                ": " + what;
  block.leave();  // for good: the scheduler throws
  std::abort();
}

const void* Block::meeting(unsigned number, uint32_t epoch) const {
  return meetings + serial % kMostBlocks * kMeetings + 2 * number + epoch % 2;
}

// Exactly as large as asked for, so that sanitizers see the end.
void Block::make_shared(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, bytes + (bytes == 0)) != 0) throw std::bad_alloc();
  if (!watched::kIsOn) memory_.clear();  // else until the launch ends: two blocks never share an address
  memory_.emplace_back(static_cast<char*>(memory), std::free);
  shared = static_cast<char*>(memory);
  shared_bytes = bytes;
}

void Block::end_launch() {
  watched::leave(&launch_ends);
  if (!watched::kIsOn) return;
  memory_.clear();
  shared = nullptr;
}

void Block::enter() {
  Fiber::arrived();
  Block& block = running();
  watched::leave(&launch_begins);
  watched::leave(block.meeting(kBegin, 0));
  (*block.kernel_)();
  block.finish_thread();
  std::abort();
}

void Block::run(Dim3 index_, Dim3 size_, Dim3 grid_, size_t bytes, const std::function<void()>& kernel) {
  index = index_;
  size = size_;
  grid = grid_;
  kernel_ = &kernel;
  num_threads_ = size.count();
  num_done_ = num_at_barrier_ = 0;
  epoch = 0;
  ++serial;
  error.clear();
  ready_.clear();
  if (bytes != shared_bytes || granules.empty()) granules.assign(bytes / 2 + 1, Granule{});
  if (bytes != shared_bytes || shared == nullptr || watched::kIsOn) make_shared(bytes);
  std::memset(shared, 0xFF, bytes);  // NaN in every format
  watched::arrive(meeting(kBegin, 0));
  ready_.reserve(num_threads_);  // no thread of the block allocates for all
  warps.assign((num_threads_ + 31) / 32, Warp{});
  if (watched::kIsOn) {  // several blocks in a row have no thread in common, which would order what they do
    const size_t wanted = num_threads_ * std::min(grid.count(), kBlocksApart);
    while (threads.size() < wanted) threads.push_back(std::make_unique<Thread>());
    std::rotate(threads.begin(), threads.begin() + num_threads_, threads.end());
  }
  for (unsigned i = 0; i < num_threads_; ++i) {
    if (i == threads.size()) threads.push_back(std::make_unique<Thread>());
    Thread& thread = *threads[i];
    thread.number = i;
    thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    thread.copies.clear();
    if (watched::kIsOn) thread.copies.reserve(1024);
    thread.open_group = 0;
    thread.fiber.reset(&Block::enter);
    warps[i / 32].live |= 1u << (i % 32);
    make_ready(thread);
  }
  block_of_thread = this;
  while (num_done_ < num_threads_ && error.empty()) {
    if (ready_.empty()) {
      error = "block " + text_of(index) + ": deadlock, " + who_waits();
      break;
    }
    current = &next();
    current->fiber.resume();
  }
  block_of_thread = nullptr;
  if (!error.empty()) throw std::runtime_error("emulator: " + error);
}

void Block::make_ready(Thread& thread) {
  thread.state = Thread::State::kReady;
  ready_.push_back(thread.number);
}

// The queue is short (a block), so taking from its front costs little.
Thread& Block::next() {
  size_t at = 0;
  if (settings().order == Order::kReverse) at = ready_.size() - 1;
  if (settings().order == Order::kRandom) at = random() % ready_.size();
  const unsigned number = ready_[at];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(at));
  return *threads[number];
}

std::string Block::who_waits() const {
  std::string text;
  for (const Warp& warp : warps)
    if (warp.arrived != 0)
      text += std::string(warp.name) + " at " + text_of(warp.place) + " with mask " + hex(warp.mask) + " has lanes " +
              hex(warp.arrived) + " of warp " + std::to_string(&warp - warps.data()) + "; ";
  if (num_at_barrier_ != 0)
    text += "__syncthreads at " + text_of(barrier_place_) + " has " + std::to_string(num_at_barrier_) + " of " +
            std::to_string(num_threads_ - num_done_) + " threads";
  return text;
}

void Block::open_barrier() {
  num_at_barrier_ = 0;
  ++epoch;
  for (unsigned i = 0; i < num_threads_; ++i)
    if (threads[i]->state == Thread::State::kBlocked) make_ready(*threads[i]);  // all that live: none can be elsewhere
}

void Block::barrier(Place place) {
  if (num_at_barrier_ == 0) {
    barrier_place_ = place;
  } else if (!is_same(barrier_place_, place)) {
    fail(place, "divergent __syncthreads: other threads wait in the one at " + text_of(barrier_place_));
  }
  current->state = Thread::State::kBlocked;
  const void* const here = meeting(0, epoch);
  watched::arrive(here);
  if (++num_at_barrier_ == num_threads_ - num_done_) open_barrier();
  leave();
  watched::leave(here);
}

void Block::finish_thread() {
  Thread& thread = *current;
  Warp& warp = warps[thread.warp()];
  warp.live &= ~(1u << thread.lane());
  if (warp.arrived != 0 && (warp.mask >> thread.lane() & 1u) != 0)
    fail(warp.place, std::string(warp.name) + " with mask " + hex(warp.mask) + " names this lane, which ends before it");
  watched::arrive(&launch_ends);
  watched::arrive(meeting(0, epoch));  // a barrier waits for those that live
  thread.state = Thread::State::kDone;
  ++num_done_;
  if (num_at_barrier_ != 0 && num_at_barrier_ == num_threads_ - num_done_) open_barrier();  // it waits for those that live
  leave(true);
}

void Block::warp_operation(const char* name, Complete complete, uint32_t mask, const void* input, void* output,
                           int64_t detail, Place place) {
  Thread& thread = *current;
  Warp& warp = warps[thread.warp()];
  const uint32_t own = 1u << thread.lane();
  if ((mask & own) == 0) fail(place, std::string(name) + ": mask " + hex(mask) + " does not name the lane that calls");
  if ((mask & ~warp.live) != 0)
    fail(place, std::string(name) + ": mask " + hex(mask) + " names lanes that are not there, of " + hex(warp.live));
  if (warp.arrived == 0) {
    warp.complete = complete;
    warp.name = name;
    warp.mask = mask;
    warp.place = place;
  } else if (warp.complete != complete || warp.mask != mask || !is_same(warp.place, place)) {
    fail(place, std::string("divergent ") + name + " with mask " + hex(mask) + ": lanes " + hex(warp.arrived) + " wait in " +
                    warp.name + " at " + text_of(warp.place) + " with mask " + hex(warp.mask));
  }
  thread.input = input;
  thread.output = output;
  thread.detail = detail;
  warp.arrived |= own;
  thread.state = Thread::State::kBlocked;
  if (warp.arrived == mask) {
    Lanes lanes = {};
    for (unsigned l = 0; l < 32; ++l)
      if ((mask >> l & 1u) != 0) lanes[l] = threads[thread.warp() * 32 + l].get();
    complete(lanes);
    warp.arrived = 0;
    for (Thread* waiting : lanes)
      if (waiting != nullptr) make_ready(*waiting);
  }
  leave();
}

void sync_threads(Place place) { running().barrier(place); }

void launch(Dim3 grid, Dim3 block_size, size_t shared_bytes, const std::function<void()>& kernel) {
  static thread_local Block block;
  const Settings chosen = settings();
  std::vector<unsigned> order(grid.count());
  std::iota(order.begin(), order.end(), 0u);
  block.random.seed(chosen.seed);
  if (chosen.order == Order::kReverse) std::reverse(order.begin(), order.end());
  if (chosen.order == Order::kRandom) std::shuffle(order.begin(), order.end(), block.random);
  watched::arrive(&launch_begins);
  for (const unsigned i : order)
    block.run({i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}, block_size, grid, shared_bytes, kernel);
  block.end_launch();
}

}  // namespace looseleaf::emu
