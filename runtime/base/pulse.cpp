#include "dtrain/base/pulse.h"

#include <execinfo.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"

namespace dtrain {
namespace {

// glibc keeps the first two real-time signals for itself, and programs take them from the low end on.
constexpr int kStackSignal = 20;

// A signal handler can use static storage only; this variable is its whole state.
std::atomic<int> g_text_fd{-1};

void put(const char* text) {
  static_cast<void>(!::write(g_text_fd, text, std::strlen(text)));
}

// Writes "thread 4711 name", a line for each call, the innermost first, and "end 4711".
void write_stack(int) {
  constexpr int kMostCalls = 96, kOfTheSignal = 2;
  const int error = errno;
  std::array<void*, kMostCalls> calls{};
  const int count = ::backtrace(calls.data(), kMostCalls);
  char name[16] = "";
  ::prctl(PR_GET_NAME, name);
  std::array<char, 24> number{};
  char* digit = &number.back();
  for (auto rest = static_cast<unsigned>(::gettid()); rest > 0; rest /= 10)
    *--digit = static_cast<char>('0' + rest % 10);
  put("thread ");
  put(digit);
  put(" ");
  put(name);
  put("\n");
  if (count > kOfTheSignal) ::backtrace_symbols_fd(calls.data() + kOfTheSignal, count - kOfTheSignal, g_text_fd);
  put("end ");
  put(digit);
  put("\n");
  errno = error;
}

}  // namespace

int stack_signal() {
  return SIGRTMIN + kStackSignal;
}
int python_stack_signal() {
  return SIGRTMIN + kStackSignal + 1;
}

Pulse& Pulse::own() {
  static auto& pulse = *new Pulse;  // threads use it until the process ends
  return pulse;
}

int Pulse::share() {
  static_assert(sizeof(PulsePage) <= kPulseTextBegins);
  if (memory_) return memory_.fd();
  memory_ = SharedMemory::create_sparse("pulse", kPulseBytes);
  page_ = new (memory_.data()) PulsePage;
  page_->thread = ::gettid();
  if (::lseek(memory_.fd(), kPulseTextBegins, SEEK_SET) < 0) throw SystemError("cannot place the stacks' text", errno);
  g_text_fd = memory_.fd();
  void* calls[2];
  static_cast<void>(::backtrace(calls, 2));  // loads what it needs
  struct sigaction action {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  if (::sigaction(stack_signal(), &action, nullptr) == 0) page_->handlers = PulsePage::kStacks;
  return memory_.fd();
}

void Pulse::has_python_stacks() {
  page_->handlers |= PulsePage::kPythonStacks;
}

void Pulse::begin_batch(std::int64_t batch) {
  page_->batch.store(batch, std::memory_order_relaxed);
  if (page_->first_batch.load(std::memory_order_relaxed) < 0) page_->first_batch = batch;
  page_->in_batch.store(1, std::memory_order_relaxed);
  move();
}

void Pulse::end_batch() {
  page_->in_batch.store(0, std::memory_order_relaxed);
  move();
}

bool Pulse::show_wait(const ShownOperation& what) {
  if (page_->thread.load(std::memory_order_relaxed) != ::gettid() ||
      page_->waits.load(std::memory_order_relaxed) != 0) {
    return false;
  }
  std::snprintf(page_->wait.data(), page_->wait.size(), "%s", what.text.c_str());
  std::snprintf(page_->operation.data(), page_->operation.size(), "%s", what.operation.c_str());
  page_->sequence.store(what.sequence, std::memory_order_relaxed);
  page_->bytes.store(what.bytes, std::memory_order_relaxed);
  page_->waits_since.store(SystemClock().monotonic().count(), std::memory_order_relaxed);
  page_->waits.store(1, std::memory_order_release);
  return true;
}

void Pulse::hide_wait() {
  page_->waits.store(0, std::memory_order_relaxed);
  move();
}

}  // namespace dtrain
