#include "world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/host/network.h"
#include "dtrain/torch_distributed/backend.h"
#include "flight_recorder.h"
#include "mail_lane.h"
#include "progress.h"

namespace dtrain::torch_distributed {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr std::size_t kIdBytes = 8;
constexpr const char* kInterface = "DTRAIN_NETWORK_INTERFACE";
constexpr const char* kAgentId = "DTRAIN_AGENT_ID";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// The worlds of this process that its groups use, the newest last, and the control planes of worlds that it has left as
// rank 0, while others are still in them.
class Worlds {
 public:
  static Worlds& instance() {
    static Worlds* const worlds = new Worlds;
    return *worlds;
  }

  void add(const std::shared_ptr<World>& world) {
    const std::scoped_lock lock(mutex_);
    static const int at_exit = std::atexit([] { announce_end({}); });
    static_cast<void>(at_exit);
    if (std::exchange(pid_, getpid()) != getpid()) {  // the first of a fork, which has no threads of its parent's
      worlds_.clear();
      static_cast<void>(new auto(std::exchange(serving_, {})));
    }
    std::erase_if(worlds_, [](const std::weak_ptr<World>& one) { return one.expired(); });
    worlds_.push_back(world);
  }

  // In a process that was forked the worlds are those of its parent.
  std::vector<std::shared_ptr<World>> live() {
    const std::scoped_lock lock(mutex_);
    std::vector<std::shared_ptr<World>> found;
    if (pid_ != getpid()) return found;
    for (const auto& weak : worlds_) {
      if (auto world = weak.lock(); world && world->is_live()) found.push_back(std::move(world));
    }
    return found;
  }

  void serve_to_the_end(std::unique_ptr<comm::ControlPlane> control, std::shared_ptr<MailLane> mail) {
    const std::scoped_lock lock(mutex_);
    serving_.emplace_back([control = std::move(control), mail = std::move(mail)]() mutable {
      serve(*control);
      close(*mail);
      control.reset();
    });
  }

  static void close(MailLane& mail) {
    std::vector<WorkPtr> ended;
    mail.close("dtrain: the process group was destroyed", ended);
    Progress::instance().end(ended);
  }

  // Returns when all ranks have left, or one has failed.
  static void serve(comm::ControlPlane& control) {
    for (bool waits = true; waits;) {
      try {
        control.finish();
        waits = false;
      } catch (const comm::TimedOut&) {
        // Rank 0 is needed for as long as the others are there.
      } catch (const CommError&) {
        waits = false;
      }
    }
  }

  void wait_for_others() {
    std::vector<std::thread> serving;
    {
      const std::scoped_lock lock(mutex_);
      if (pid_ != getpid()) return;
      serving.swap(serving_);
    }
    for (std::thread& thread : serving) thread.join();
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<World>> worlds_;
  std::vector<std::thread> serving_;
  pid_t pid_ = 0;
};

// What the ranks of a group say to each other through its store.
class Meeter {
 public:
  explicit Meeter(const Meeting& meeting) : meeting_(meeting) {
    // The store may have served an earlier group of this name: each rank counts those that it has made.
    const std::string own = "dtrain/made/" + std::to_string(meeting.rank);
    where_ = "dtrain/" + std::to_string(meeting.store->add(own, 1)) + "/";
  }

  // Rank 0 gets what each rank says.
  std::vector<Json> gather(const Json& own) {
    if (meeting_.rank != 0) {
      set(key_of(meeting_.rank), own);
      return {};
    }
    std::vector<Json> all{own};
    for (int rank = 1; rank < meeting_.size; ++rank) all.push_back(get(key_of(rank), rank));
    return all;
  }
  void answer(const Json& answer) {
    if (meeting_.size > 1) set("answer", answer);
  }
  Json read_answer() { return get("answer", 0); }
  // The answer has a secret: it is there no longer than it is needed.
  void withdraw_answer() {
    if (meeting_.size > 1) meeting_.store->deleteKey(where_ + "answer");
  }

 private:
  static std::string key_of(int rank) { return "rank/" + std::to_string(rank); }
  void set(const std::string& key, const Json& value) { meeting_.store->set(where_ + key, to_line(value)); }
  Json get(const std::string& key, int of_rank) {
    try {
      meeting_.store->wait({where_ + key}, meeting_.timeout);
    } catch (const std::exception& error) {
      throw CommError("rank " + std::to_string(meeting_.rank) + " of the process group has waited " +
                      format_duration(meeting_.timeout) + " for rank " + std::to_string(of_rank) +
                      " to make it, too (" + std::string(trimmed(std::string(error.what()).substr(0, 200))) + ")");
    }
    return Json::parse(meeting_.store->get_to_str(where_ + key));
  }

  const Meeting& meeting_;
  std::string where_;
};

Json introduction() {
  const std::string agent = variable(kAgentId);
  Json worlds = Json::object();
  for (const auto& world : Worlds::instance().live()) worlds[world->id()] = world->rank();
  return {{"pid", getpid()}, {"host", agent.empty() ? host::host_identity().key : agent}, {"worlds", worlds}};
}

// Returns the newest of this process's worlds that all of these ranks are in.
std::shared_ptr<World> common_world(const std::vector<Json>& ranks) {
  auto worlds = Worlds::instance().live();
  for (auto world = worlds.rbegin(); world != worlds.rend(); ++world) {
    if (std::all_of(ranks.begin(), ranks.end(),
                    [&](const Json& one) { return one["worlds"].contains((*world)->id()); })) {
      return *world;
    }
  }
  return nullptr;
}

std::vector<int> host_numbers(const std::vector<Json>& ranks) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const Json& rank : ranks) {
    hosts.push_back(numbers.emplace(rank["host"].get<std::string>(), static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

World::Terms terms_of(const Meeting& meeting, const std::string& id, std::vector<int> hosts, std::vector<pid_t> pids) {
  World::Terms terms{.id = id,
                     .control = {},
                     .server = {},
                     .hosts = std::move(hosts),
                     .names = meeting.names,
                     .pids = std::move(pids)};
  comm::ControlOptions& options = terms.control;
  const int host = terms.hosts.at(static_cast<std::size_t>(meeting.rank));
  options.world = {
      .rank = meeting.rank,
      .size = meeting.size,
      .local_rank = static_cast<int>(std::count(terms.hosts.begin(), terms.hosts.begin() + meeting.rank, host)),
      .local_size = static_cast<int>(std::count(terms.hosts.begin(), terms.hosts.end(), host)),
      .host = "host " + std::to_string(host)};
  options.timeout = meeting.timeout;
  options.host_name = host::host_identity().name;
  options.session = "torch.distributed " + id;
  options.log = make_stderr_logger("warn");
  return terms;
}

Place serve_world(const Meeting& meeting, Meeter& meeter, const std::vector<Json>& ranks) {
  std::vector<pid_t> pids;
  for (const Json& rank : ranks) pids.push_back(rank["pid"]);
  World::Terms terms = terms_of(meeting, random_hex(kIdBytes), host_numbers(ranks), std::move(pids));
  terms.control.secret = random_hex(kSecretBytes);
  const bool one_host = *std::max_element(terms.hosts.begin(), terms.hosts.end()) == 0;
  std::unique_ptr<comm::ControlPlane> control;
  try {
    if (one_host) host::check_loopback();
    const std::string address = one_host ? "127.0.0.1" : host::reachable_address(variable(kInterface), kInterface);
    control = comm::ControlPlane::serve(terms.control, {.address = address}, &terms.server);
  } catch (const std::exception& error) {
    meeter.answer({{"error", describe(error)}});
    throw;
  }
  meeter.answer({{"id", terms.id},
                 {"hosts", terms.hosts},
                 {"pids", terms.pids},
                 {"address", terms.server.address},
                 {"port", terms.server.port},
                 {"secret", terms.control.secret}});
  control->barrier("all connected");
  meeter.withdraw_answer();
  const std::string address = one_host ? std::string() : terms.server.address;
  Place place{.world = std::make_shared<World>(std::move(terms), std::move(control), address), .is_first = true};
  return place;
}

Place connect_to_world(const Meeting& meeting, const Json& answer) {
  World::Terms terms = terms_of(meeting, answer["id"], answer["hosts"].get<std::vector<int>>(),
                                answer["pids"].get<std::vector<pid_t>>());
  terms.control.secret = answer["secret"];
  terms.server = {answer["address"], answer["port"]};
  auto control = comm::ControlPlane::connect(terms.control, terms.server);
  control->barrier("all connected");
  const bool one_host = *std::max_element(terms.hosts.begin(), terms.hosts.end()) == 0;
  const std::string address = one_host ? std::string() : host::source_address(terms.server.address);
  Place place{.world = std::make_shared<World>(std::move(terms), std::move(control), address), .is_first = true};
  return place;
}

Place lead(const Meeting& meeting, Meeter& meeter) {
  const std::vector<Json> ranks = meeter.gather(introduction());
  const std::shared_ptr<World> world = common_world(ranks);
  if (!world) return serve_world(meeting, meeter, ranks);
  Place place{.world = world, .number = world->number_group()};
  for (const Json& rank : ranks) place.members.push_back(rank["worlds"][world->id()]);
  meeter.answer({{"world", world->id()}, {"members", place.members}, {"group", place.number}});
  return place;
}

Place follow(const Meeting& meeting, Meeter& meeter) {
  meeter.gather(introduction());
  const Json answer = meeter.read_answer();
  if (answer.contains("error")) {
    throw CommError("rank 0 of the process group cannot serve it: " + answer["error"].get<std::string>());
  }
  if (!answer.contains("world")) return connect_to_world(meeting, answer);
  Place place{.members = answer["members"].get<std::vector<int>>(), .number = answer["group"]};
  for (auto& world : Worlds::instance().live()) {
    if (world->id() == answer["world"].get<std::string>()) place.world = world;
  }
  if (!place.world) throw CommError("a rank of the other groups failed while this process group was made");
  return place;
}

}  // namespace

World::World(Terms terms, std::unique_ptr<comm::ControlPlane> control, std::string address)
    : terms_(std::move(terms)), address_(std::move(address)), pid_(getpid()), control_(std::move(control)) {
  comm::CommunicatorOptions options{.timeout = terms_.control.timeout, .log = log()};
  std::vector<pid_t> local = terms_.pids;
  for (int other = 0; other < static_cast<int>(local.size()); ++other) {
    if (host_of(other) != host_of(rank())) local[static_cast<std::size_t>(other)] = 0;
  }
  processes_ = std::make_shared<Processes>(local);
  arena_ = comm::make_arena(*control_, options, terms_.names);
  flight_ = std::make_shared<FlightRecorder>(*control_, terms_.hosts, terms_.names);
  FlightRecorder::set_newest(flight_);
  mail_ = std::make_shared<MailLane>(
      *control_, processes_,
      comm::make_mailbox(
          {.control = *control_, .members = terms_.names, .mpi = nullptr, .address = address_, .options = options}),
      flight_, log());
  Progress::instance().add(mail_);
}

World::~World() {
  if (pid_ != getpid()) {  // a fork: the threads and connections are its parent's
    static_cast<void>(control_.release());
    static_cast<void>(new std::shared_ptr<MailLane>(std::move(mail_)));
    static_cast<void>(new std::shared_ptr<FlightRecorder>(std::move(flight_)));
    return;
  }
  flight_->close();
  if (rank() == 0 && !control_->failure() && !ended_) {
    Worlds::instance().serve_to_the_end(std::move(control_), std::move(mail_));
    return;
  }
  Worlds::close(*mail_);
  if (!ended_) control_->leave();
}

std::uint32_t World::number_group() {
  const auto size = static_cast<std::uint32_t>(terms_.control.world.size);
  return ++groups_ * size + static_cast<std::uint32_t>(rank());
}

void World::announce_end(const std::string& cause) {
  if (ended_ || pid_ != getpid()) return;
  ended_ = true;
  flight_->close();
  if (!cause.empty()) {
    control_->fail({.rank = rank(), .step = -1, .cause = cause});
  } else if (rank() == 0) {
    Worlds::serve(*control_);
  } else {
    control_->leave();
  }
}

Place meet(const Meeting& meeting) {
  Meeter meeter(meeting);
  Place place = meeting.rank == 0 ? lead(meeting, meeter) : follow(meeting, meeter);
  if (place.is_first) {
    for (int rank = 0; rank < meeting.size; ++rank) place.members.push_back(rank);
    Worlds::instance().add(place.world);
  }
  return place;
}

void announce_end(const std::string& cause) {
  for (const auto& world : Worlds::instance().live()) world->announce_end(cause);
  Worlds::instance().wait_for_others();
  Progress::instance().stop();
}

}  // namespace dtrain::torch_distributed
