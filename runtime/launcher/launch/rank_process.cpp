#include "launch/rank_process.h"

#include <cerrno>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain::launcher {

RankProcess RankProcess::start(int rank, ProcessOptions options,
                               const std::function<Standby::Started(const ProcessOptions&)>& start) {
  UnixSocketPair link = make_socket_pair();
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  options.fds[0] = input.get();
  options.fds[kLinkFd] = link.theirs.get();
  return RankProcess(rank, start(options), std::move(link.ours));
}

RankNews RankProcess::read_link() {
  RankNews news;
  while (link_) {
    bool timed_out = false;
    std::optional<UnixMessage> message;
    try {
      message = link_.receive(std::chrono::milliseconds(0), &timed_out);
    } catch (const SystemError& error) {
      if (error.code() != EMSGSIZE) throw;
      continue;  // longer than any message of a rank, so another program sent it
    }
    if (!message) {
      if (!timed_out) link_.close();
      break;
    }
    const Json json = Json::parse(message->data, nullptr, false);
    if (!json.is_object()) continue;
    try {
      take(json, message->fds, news);
    } catch (const Json::exception&) {
      // An unexpected type: a program that is no rank wrote to the file descriptor. Its exit status is reported.
    } catch (const Error&) {
      // The same with memory that is no pulse; a rank is not watched then.
    }
  }
  return news;
}

void RankProcess::take(const Json& message, std::vector<UniqueFd>& fds, RankNews& news) {
  const std::string type = message.value("type", std::string());
  if (type == "progress") {
    news.progress = rank::progress_of(message);
  } else if (type == "folder") {
    news.folder = message.value("path", std::string());
    news.step = message.value("step", std::int64_t{0});
  } else if (type == "state") {
    joined_ = true;
    finished_ = finished_ || message.value("state", std::string()) == "finished";
  } else if (type == "saving") {
    saves_ = true;
  } else if (type == "error" && !error_) {
    error_ = rank::error_of(message);
  } else if (type == "pulse" && !fds.empty()) {
    pulse_ = std::make_unique<RankPulse>(std::move(fds.front()), process_.pid());
  } else if (type == "memory" && !fds.empty()) {
    news.memory.insert_or_assign(message.at("name").get<std::string>(), std::move(fds.front()));
  }
}

bool RankProcess::reap() {
  if (!status_) status_ = process_.wait(std::chrono::milliseconds(0));
  return status_.has_value();
}

}  // namespace dtrain::launcher
