#include "launch/rank_process.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/socket.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/scheduler/rank_mark.h"
#include "link/launcher_link.h"
#include "plan/gpu_placement.h"

namespace dtrain::run {
namespace {
constexpr int kLinkFd = 3;  // its number in the rank
}

RankProcess RankProcess::start(const LaunchPlan& plan, const RankPlacement& placement, Handover handover,
                               const std::filesystem::path& log, const Variables& variables) {
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!output) throw SystemError("cannot write the log " + log.string(), errno);
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw SystemError("cannot make a socket pair", errno);
  }
  UnixSocket link{UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);

  handover.link_fd = kLinkFd;
  const comm::World world{.rank = placement.rank,
                          .size = plan.world_size(),
                          .local_rank = placement.rank,
                          .local_size = plan.world_size(),
                          .host = handover.agent_id};
  ProcessOptions options;
  options.command = plan.command;
  options.environment = thread_variables(plan, placement, variables);
  if (plan.on_gpus()) {
    for (const auto& [name, value] : gpu_variables(plan)) options.environment[name] = value;
  }
  for (const auto& [name, value] : rank_variables(world, handover)) options.environment[name] = value;
  // The mark identifies the rank if the launcher is killed before it has recorded the process.
  options.environment[scheduler::kRankMark] = scheduler::rank_mark(handover.launcher_pid);
  options.fds = {{0, input.get()}, {1, output.get()}, {2, output.get()}, {kLinkFd, theirs.get()}};
  options.cpus = placement.cpus;
  return RankProcess(placement.rank, Process::start(options), std::move(link));
}

void RankProcess::read_link(std::optional<Progress>* progress) {
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
      return;
    }
    const Json json = Json::parse(message->data, nullptr, false);
    if (!json.is_object()) continue;
    try {
      const std::string type = json.value("type", std::string());
      if (type == "progress") {
        *progress = progress_of(json);
      } else if (type == "state") {
        joined_ = true;
        finished_ = finished_ || json.value("state", std::string()) == "finished";
      } else if (type == "error" && !error_) {
        error_ = error_of(json);
      }
    } catch (const Json::exception&) {
      // An unexpected type: a program that is no rank wrote to the file descriptor. Its exit status is reported.
    }
  }
}

bool RankProcess::reap() {
  if (!status_) status_ = process_.wait(std::chrono::milliseconds(0));
  return status_.has_value();
}

}  // namespace dtrain::run
