#include "link/launcher_link.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain::run {
namespace {
constexpr int kSendWaitMs = 1000;
// A message must fit into one packet of 64 KiB. It holds two texts, and JSON may escape each byte as six (\u001b).
constexpr std::size_t kLongestText = 4 * 1024;
}  // namespace

Json state_message(const std::string& state, ExitCode exit_code) {
  return {{"type", "state"}, {"state", state}, {"exit_code", exit_code}};
}

Json progress_message(const Progress& progress) {
  return {{"type", "progress"},
          {"batch", progress.batch},
          {"total_batches", progress.total_batches},
          {"epoch", progress.epoch},
          {"epoch_batch", progress.epoch_batch},
          {"batches_per_epoch", progress.batches_per_epoch},
          {"loss", progress.loss ? number_or_text(*progress.loss) : Json()},
          {"samples_per_second", progress.samples_per_second},
          {"seconds_left", progress.seconds_left},
          {"activity", progress.activity}};
}

std::string failed_when(std::int64_t step) {
  return step >= 0 ? "failed at batch " + std::to_string(step) : "could not start";
}

Json to_json(const ErrorMessage& error) {
  return {{"type", "error"},
          {"primary", error.primary},
          {"agreed", error.agreed},
          {"departure", static_cast<int>(error.departure)},
          {"rank", error.rank},
          {"step", error.step},
          {"cause", error.cause.substr(0, kLongestText)},
          {"remedy", error.remedy.substr(0, kLongestText)}};
}

ErrorMessage error_of(const Json& message) {
  return {.primary = message.value("primary", true),
          .agreed = message.value("agreed", false),
          .departure = static_cast<comm::Departure>(std::clamp(message.value("departure", 0), 0, 3)),
          .rank = message.value("rank", -1),
          .step = message.value("step", std::int64_t{-1}),
          .cause = message.value("cause", std::string()),
          .remedy = message.value("remedy", std::string())};
}

Progress progress_of(const Json& message) {
  const auto number = [&](const char* key) {
    const auto found = message.find(key);
    return found != message.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  const auto count = [&](const char* key) { return message.value(key, std::int64_t{0}); };
  Progress progress;
  progress.batch = count("batch");
  progress.total_batches = count("total_batches");
  progress.epoch = count("epoch");
  progress.epoch_batch = count("epoch_batch");
  progress.batches_per_epoch = count("batches_per_epoch");
  if (const auto loss = message.find("loss"); loss != message.end()) progress.loss = number_of(*loss);
  progress.samples_per_second = number("samples_per_second");
  progress.seconds_left = number("seconds_left");
  progress.activity = message.value("activity", std::string());
  return progress;
}

SocketLink::SocketLink(UniqueFd fd) : fd_(std::move(fd)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (::fcntl(fd_.get(), F_SETFD, FD_CLOEXEC) != 0) {
    throw ConfigError("environment: DTRAIN_LAUNCHER_FD=" + std::to_string(fd_.release()) + " is not an open descriptor",
                      "only `dtrain launch` sets DTRAIN_LAUNCHER_FD; unset it");
  }
  if (!stop_) throw SystemError("cannot make an eventfd", errno);
}

SocketLink::~SocketLink() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void SocketLink::watch(std::function<void()> gone, std::function<void(int)>) {
  thread_ = std::thread([this, gone = std::move(gone)] {
    pollfd fds[] = {{fd_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (true) {
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[1].revents) return;
      char byte = 0;  // the launcher sends nothing: only the end of the stream makes this readable
      if (fds[0].revents && ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT) <= 0) break;
    }
    gone();
  });
}

bool SocketLink::is_gone() const {
  char byte = 0;
  return ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

bool SocketLink::send(const Json& message, bool droppable) {
  const std::string text = to_line(message);
  while (true) {
    if (::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || droppable) return false;
    pollfd writable{fd_.get(), POLLOUT, 0};
    if (::poll(&writable, 1, kSendWaitMs) <= 0) return false;
  }
}

}  // namespace dtrain::run
