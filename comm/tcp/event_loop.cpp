#include "tcp/event_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::uint32_t kWakeUp = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kDeadline = kWakeUp - 1;
constexpr int kEventsAtOnce = 64;
constexpr std::chrono::milliseconds kLongestWait{60'000};

UniqueFd checked(int fd, const char* what) {
  if (fd < 0) throw SystemError(std::string("cannot make ") + what, errno);
  return UniqueFd(fd);
}

void change(int set, int operation, int fd, std::uint32_t events, std::uint32_t token) {
  epoll_event event{};
  event.events = events;
  event.data.u32 = token;
  if (::epoll_ctl(set, operation, fd, &event) != 0) throw SystemError("cannot watch a socket", errno);
}

}  // namespace

EventLoop::EventLoop()
    : sockets_(checked(::epoll_create1(EPOLL_CLOEXEC), "an epoll set")),
      sleeping_(checked(::epoll_create1(EPOLL_CLOEXEC), "an epoll set")),
      wake_up_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "an eventfd")),
      deadline_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "a timer")) {
  change(sockets_.get(), EPOLL_CTL_ADD, wake_up_.get(), EPOLLIN | EPOLLET, kWakeUp);
  change(sockets_.get(), EPOLL_CTL_ADD, deadline_.get(), EPOLLIN | EPOLLET, kDeadline);
  change(sleeping_.get(), EPOLL_CTL_ADD, sockets_.get(), EPOLLIN, 0);
}

void EventLoop::add(int fd, std::uint32_t token) {
  change(sockets_.get(), EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, token);
}

void EventLoop::remove(int fd) {
  ::epoll_ctl(sockets_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

// The timer is in the set of sockets. So it also ends the sleep of a thread that fell asleep before this call, and that
// of one which takes over from a thread that waited.
void EventLoop::set_deadline(Nanoseconds at) {
  const Nanoseconds left = std::max(at - SystemClock().monotonic(), Nanoseconds{1});  // 0 would be never
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  itimerspec when{};
  when.it_value = {static_cast<time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
  if (::timerfd_settime(deadline_.get(), 0, &when, nullptr) != 0) throw SystemError("cannot set a timer", errno);
}

void EventLoop::sleep() {
  epoll_event event{};
  ::epoll_wait(sleeping_.get(), &event, 1, -1);
}

void EventLoop::hold(bool held) {
  change(sleeping_.get(), EPOLL_CTL_MOD, sockets_.get(), held ? 0U : EPOLLIN, 0);
}

void EventLoop::wait(Nanoseconds timeout) {
  const auto most = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(timeout), {}, kLongestWait);
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count = ::epoll_wait(sockets_.get(), events.data(), kEventsAtOnce, static_cast<int>(most.count()));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u32 == kWakeUp) {
      std::uint64_t times = 0;
      static_cast<void>(!::read(wake_up_.get(), &times, sizeof times));
      woken_.exchange(false);  // sees what happened before each wake() that had nothing to do
      continue;
    }
    if (event.data.u32 == kDeadline) continue;
    const bool ended = (event.events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    events_.push_back({event.data.u32, ended || (event.events & EPOLLIN) != 0, (event.events & EPOLLOUT) != 0, ended});
  }
}

void EventLoop::wake() {
  if (woken_.exchange(true)) return;
  const std::uint64_t once = 1;
  static_cast<void>(!::write(wake_up_.get(), &once, sizeof once));
}

}  // namespace dtrain::comm
