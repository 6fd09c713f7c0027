#include "link/rank_plane.h"

#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::run {

RankPlane::RankPlane(const std::string& address, const LaunchOrders& orders, const Logger& log)
    : ranks_(static_cast<int>(orders.agents.size())), orders_(orders) {
  contact_ = {.address = address, .secrets = {.launch = random_hex(32), .ranks = random_hex(32)}};
  comm::ControlEndpoint bound;
  plane_ = comm::ControlPlane::serve(plane_options(contact_.secrets.launch, 0, ranks_, {}, log), {.address = address},
                                     &bound);
  contact_.port = bound.port;
  put_orders(*plane_, orders_);
}

std::optional<std::string> RankPlane::look(const std::string& key) {
  try {
    return plane_->get_within(key, std::chrono::milliseconds(0));
  } catch (const CommError&) {  // the run has failed, and the key is not set
    return std::nullopt;
  }
}

std::optional<Progress> RankPlane::take_progress() {
  const auto text = look(plane_key::kProgress);
  if (!text || *text == last_progress_) return std::nullopt;
  last_progress_ = *text;
  return progress_of(Json::parse(*text));
}

void RankPlane::read_states() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (finished_.count(rank) != 0) continue;
    const auto text = look(plane_key::state(rank));
    if (!text) continue;
    joined_[rank] = true;
    const Json state = Json::parse(*text);
    if (state.value("state", std::string()) != "finished") continue;
    finished_[rank] = true;
    exit_code_ = std::max(exit_code_, state.value("exit_code", 0));
  }
}

int RankPlane::joined() {
  read_states();
  return static_cast<int>(joined_.size());
}

bool RankPlane::all_finished() {
  read_states();
  return static_cast<int>(finished_.size()) == ranks_;
}

std::map<std::string, HostReport> RankPlane::hosts() {
  std::map<std::string, HostReport> result;
  for (const std::string& agent : std::set<std::string>(orders_.agents.begin(), orders_.agents.end())) {
    if (const auto text = look(plane_key::host(agent))) result[agent] = host_report_of(Json::parse(*text));
  }
  return result;
}

std::optional<ErrorMessage> RankPlane::error() {
  const auto failure = plane_->failure();
  if (!failure || failure->rank == 0) return std::nullopt;
  const Json said = Json::parse(failure->cause, nullptr, false);
  if (said.is_object()) return error_of(said);
  return ErrorMessage{.departure = failure->departure, .rank = failure->rank - 1, .step = failure->step};
}

void RankPlane::stop(int signal) {
  if (std::exchange(stopping_, true)) return;
  plane_->fail({0, -1, to_line({{"signal", signal}})});
}

void RankPlane::finish() {
  if (!plane_->failure()) plane_->finish();
}

}  // namespace dtrain::run
