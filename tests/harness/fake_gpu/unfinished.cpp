#include "unfinished.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <thread>
#include <utility>

#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

using std::chrono::microseconds;

constexpr microseconds kShortestNap{50};
constexpr microseconds kLongestNap{1000};
// Of each stream: more than a test ever has between an operation's end and the host's look at it. An end that is
// forgotten too early lets a later event seem to have fired before an earlier one.
constexpr std::size_t kKeptEnds = 100'000;
constexpr int kYields = 20;  // before the first nap of a thread that waits

}  // namespace

void Unfinished::add(std::unique_ptr<Operation> operation) {
  const std::size_t stream = operation->access().stream;
  if (of_streams_.size() <= stream) {
    of_streams_.resize(stream + 1);
    ends_.resize(stream + 1);
  }
  of_streams_[stream].push_back(std::move(operation));
  advance();
  ++added_;
  added_.notify_one();
}

bool Unfinished::any(const Clock& clock) const {
  for (std::size_t s = 0; s < std::min(of_streams_.size(), clock.size()); ++s) {
    if (!of_streams_[s].empty() && covers(clock, of_streams_[s].front()->access())) return true;
  }
  return false;
}

double Unfinished::end_us(const Clock& clock) const {
  double last = 0;
  for (std::size_t s = 0; s < std::min(ends_.size(), clock.size()); ++s) {
    const auto& ends = ends_[s];
    const auto after = std::upper_bound(ends.begin(), ends.end(), clock[s],
                                        [](std::uint64_t number, const End& end) { return number < end.number; });
    if (after != ends.begin()) last = std::max(last, std::prev(after)->us);
  }
  return last;
}

bool Unfinished::may_begin(const Operation& operation) const {
  return !any(operation.before());
}

bool Unfinished::advance() {
  if (std::exchange(advancing_, true)) return false;  // from within an operation
  bool ended = false;
  for (bool again = true; again;) {
    again = false;
    for (std::size_t s = 0; s < of_streams_.size(); ++s) {
      while (!of_streams_[s].empty()) {
        Operation& first = *of_streams_[s].front();
        if (!may_begin(first) || !first.advance()) break;
        ends_[s].push_back({first.access().number, now_us()});
        if (ends_[s].size() > kKeptEnds) ends_[s].pop_front();
        of_streams_[s].pop_front();
        ended = again = true;
      }
    }
  }
  advancing_ = false;
  return ended;
}

template <typename StillWaits>
void Unfinished::block_while(c10::DeviceIndex device, const StillWaits& still_waits) {
  for (int round = 0; still_waits(); ++round) {
    advance();
    if (!still_waits()) return;
    machine().adversaries.check(device);
    const Released released(machine().mutex);
    if (round < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kShortestNap);
    }
  }
}

void Unfinished::wait(const Clock& clock, c10::DeviceIndex device) {
  const Clock until = clock;
  block_while(device, [&] { return any(until); });
}

void Unfinished::wait_for_turn(const Stream& stream) {
  block_while(stream.handle.device_index(), [&] { return any(stream.clock); });
}

void Unfinished::abandon_all() {
  for (auto& operations : of_streams_) {
    for (const auto& operation : std::exchange(operations, {})) operation->abandon();
  }
}

void Unfinished::run_in_background() {
  if (std::exchange(running_, true)) return;
  std::atexit([] {  // libtorch's objects are destroyed after this
    const std::scoped_lock lock(machine().mutex);
    machine().unfinished.stopping_ = true;
  });
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are for the program's threads
  std::thread([this] { run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Unfinished::run() {
  auto nap = kShortestNap;
  for (;;) {
    const unsigned seen = added_;
    bool idle = true;
    {
      const std::scoped_lock lock(machine().mutex);
      if (stopping_) return;
      if (advance()) nap = kShortestNap;
      for (const auto& operations : of_streams_) idle &= operations.empty();
    }
    if (idle) {
      added_.wait(seen);
      nap = kShortestNap;
    } else {
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, kLongestNap);
    }
  }
}

}  // namespace dtrain::test::fake_gpu
