#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include <sys/eventfd.h>
#include <sys/socket.h>

#include "dtrain/base/limits.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/rank/launcher_link.h"
#include "dtrain/rank/libtorch.h"

namespace dtrain::rank {

namespace {
constexpr int kSendWaitMs = 1000;
// A message must fit into one packet of 64 KiB. It holds two texts, and JSON may escape each byte as six (\u001b).
constexpr std::size_t kLongestText = 4 * 1024;

// Deadline for connecting and for every wait: the ranks of a large job start one after the other.
constexpr auto kPlanePatience = std::chrono::seconds(120);
// A message holds 1 MiB. JSON doubles quotes, and a part that begins or ends inside a character is sent as hexadecimal
// digits, which doubles every byte.
constexpr std::size_t kBytesOfOrdersPart = 256u << 10;
constexpr auto kPlaneAnswers = std::chrono::milliseconds(200);  // deadline of a look-up of a key

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

Json pulse_message() {
  return {{"type", "pulse"}};
}

Json memory_message(const std::string& name) {
  return {{"type", "memory"}, {"name", name}};
}

Json folder_message(const std::filesystem::path& run_dir, std::int64_t step) {
  return {{"type", "folder"}, {"path", run_dir.string()}, {"step", step}};
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
    throw ConfigError("the link to the launcher: " + std::to_string(fd_.release()) + " is not an open descriptor",
                      "only `dtrain launch` sets DTRAIN_LAUNCHER_FD and DTRAIN_KEEPER_FD; unset them");
  }
  if (!stop_) throw SystemError("cannot make an eventfd", errno);
}

SocketLink::~SocketLink() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void SocketLink::watch(std::function<void()> gone, std::function<void(int)> stop) {
  thread_ = start_thread("the connection to the launcher", [this, gone = std::move(gone), stop = std::move(stop)] {
    pollfd fds[] = {{fd_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (true) {
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[1].revents) return;
      char byte = 0;  // a launcher sends nothing: only the end of the stream makes this readable
      if (fds[0].revents && ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT) <= 0) break;
      if (byte == kPause) stop(0);
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

void SocketLink::share_pulse(int fd) {
  UnixSocket(duplicate(fd_.get())).send(to_line(pulse_message()), {&fd, 1});
}

void SocketLink::keep_memory(const std::string& name, int fd) {
  if (name.size() <= kLongestText) UnixSocket(duplicate(fd_.get())).send(to_line(memory_message(name)), {&fd, 1});
}

Json to_json(const LaunchOrders& orders) {
  return {{"version", version()},
          {"run_dir", orders.run_dir.string()},
          {"token", orders.token},
          {"agents", orders.agents},
          {"plan", orders.plan},
          {"experiment", orders.experiment},
          {"resume_from", orders.resume_from.string()},
          {"resume_step", orders.resume_step},
          {"keeps_states", orders.keeps_states},
          {"lineage", to_json(orders.lineage)}};
}

LaunchOrders orders_of(const Json& json) {
  return {.run_dir = json.at("run_dir").get<std::string>(),
          .token = json.at("token").get<std::string>(),
          .agents = json.at("agents").get<std::vector<std::string>>(),
          .plan = json.at("plan").get<std::string>(),
          .experiment = json.at("experiment").get<std::string>(),
          .resume_from = json.at("resume_from").get<std::string>(),
          .resume_step = json.at("resume_step").get<std::int64_t>(),
          .keeps_states = json.at("keeps_states").get<bool>(),
          .lineage = checkpoints::lineage_of(json.at("lineage"))};
}

int LaunchOrders::host_of(int rank) const {
  std::vector<std::string> hosts;
  for (const std::string& agent : agents) {
    if (std::ranges::find(hosts, agent) == hosts.end()) hosts.push_back(agent);
  }
  return static_cast<int>(std::ranges::find(hosts, agents.at(static_cast<std::size_t>(rank))) - hosts.begin());
}

Json memory_choice_message(const checkpoints::Lineage& lineage, std::int64_t step) {
  return {{"type", "states"}, {"lineage", to_json(lineage)}, {"step", step}};
}

void put_orders(comm::ControlPlane& plane, const LaunchOrders& orders) {
  const std::string text = to_line(to_json(orders));
  int parts = 0;
  for (std::size_t from = 0; from < text.size(); from += kBytesOfOrdersPart) {
    plane.set(plane_key::orders_part(parts++), text.substr(from, kBytesOfOrdersPart));
  }
  plane.set(plane_key::kOrders, to_line({{"version", version()}, {"parts", parts}}));
}

Json to_json(const HostReport& report) {
  return {{"host", report.host}, {"has_folder", report.has_folder}, {"agent_pid", report.monitor_pid}};
}

HostReport host_report_of(const Json& json) {
  return {.host = json.at("host").get<std::string>(),
          .has_folder = json.at("has_folder").get<bool>(),
          .monitor_pid = json.at("agent_pid").get<std::int64_t>()};
}

std::string plane_key::orders_part(int part) {
  return std::string(kOrders) + "/" + std::to_string(part);
}
std::string plane_key::state(int rank) {
  return "state/" + std::to_string(rank);
}
std::string plane_key::entered_mpi(int rank) {
  return "mpi/" + std::to_string(rank);
}
std::string plane_key::host(const std::string& agent) {
  return "host/" + agent;
}

comm::ControlOptions plane_options(const std::string& secret, int member, int ranks, const std::string& host_name,
                                   const Logger& log) {
  return {.world = {.rank = member, .size = ranks + 1},
          .secret = secret,
          .timeout = kPlanePatience,
          .host_name = host_name,
          .session = "launch",
          .log = log};
}

PlaneLink::PlaneLink(const LauncherContact& launcher, const comm::World& world, const std::string& host_name,
                     const Logger& log)
    : rank_(world.rank) {
  try {
    plane_ =
        comm::ControlPlane::connect(plane_options(launcher.secrets.launch, world.rank + 1, world.size, host_name, log),
                                    {launcher.address, launcher.port});
  } catch (const CommError& error) {
    throw CommError("host " + host_name + " does not reach the launcher at " + launcher.address + ":" +
                        std::to_string(launcher.port) + ": " + error.what(),
                    "the hosts must reach the launching one over the network it has chosen "
                    "(task_container_defaults.dtrain_network_interface)");
  }
  const Json told = Json::parse(plane_->get(plane_key::kOrders));
  if (const std::string theirs = told.value("version", std::string("?")); theirs != version()) {
    const std::string cause =
        "host " + host_name + " has dtrain " + version() + ", the launching host has dtrain " + theirs;
    const std::string remedy = "install the same version on every host";
    send(to_json(ErrorMessage{.rank = rank_, .cause = cause, .remedy = remedy}));
    throw ConfigError(cause, remedy);
  }
  std::string text;
  for (int part = 0; part < told.at("parts").get<int>(); ++part) text += plane_->get(plane_key::orders_part(part));
  orders_ = orders_of(Json::parse(text));
  if (orders_.agents.size() != static_cast<std::size_t>(world.size)) {
    throw ConfigError("the launcher planned " + std::to_string(orders_.agents.size()) + " ranks, not " +
                      std::to_string(world.size));
  }
}

void PlaneLink::report_host(const HostReport& report) {
  plane_->set(plane_key::host(orders_.agents[static_cast<std::size_t>(rank_)]), to_line(to_json(report)));
}

void PlaneLink::enter_mpi() {
  plane_->set(plane_key::entered_mpi(rank_), "1");
}

bool PlaneLink::has_entered_mpi(int rank) {
  try {
    return plane_->get_within(plane_key::entered_mpi(rank), kPlaneAnswers).has_value();
  } catch (const CommError&) {  // the run has failed, and the key is not set
    return false;
  }
}

void PlaneLink::watch(std::function<void()> gone, std::function<void(int signal)> stop) {
  plane_->on_failure([gone = std::move(gone), stop = std::move(stop)](const comm::RankFailure& failure) {
    if (failure.rank != 0) return;  // another rank's failure: the ranks inform each other
    if (!comm::is_reported(failure.departure)) return gone();
    const Json told = Json::parse(failure.cause, nullptr, false);
    if (told.is_object()) stop(told.value("signal", 0));
  });
}

bool PlaneLink::is_gone() const {
  return plane_->peer_state(0) == comm::PeerState::kGone;
}

bool PlaneLink::send(const Json& message, bool) {
  const std::string type = message.value("type", std::string());
  if (type == "progress") {
    plane_->set(plane_key::kProgress, to_line(message));
  } else if (type == "states") {
    plane_->set(plane_key::kMemory, to_line(message));
  } else if (type == "state") {
    plane_->set(plane_key::state(rank_), to_line(message));
  } else if (type == "error") {
    const int blamed = message.value("rank", -1);
    plane_->fail({blamed < 0 ? -1 : blamed + 1, message.value("step", std::int64_t{-1}), to_line(message)});
  }
  return !is_gone();
}

void PlaneLink::leave() {
  if (!plane_->failure()) plane_->finish();
}

}  // namespace dtrain::rank
