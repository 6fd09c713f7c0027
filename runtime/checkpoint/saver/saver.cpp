#include "dtrain/checkpoint/saver.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "saver/process.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

constexpr std::chrono::seconds kEndPatience{10};

std::filesystem::path find_saver() {
  static const char inside_this_library = 0;
  return find_program_beside(&inside_this_library, "dtrain-saver");
}

// If the folder has vanished, the saver reports it with the next save.
bool try_to_lock(StorageLock& lock) {
  try {
    return lock.try_take();
  } catch (const SystemError&) {
    return false;
  }
}

struct StartedSaver {
  Process process;
  UnixSocket socket;
};

StartedSaver start_saver(const SaverOptions& options, int memory_fd) {
  UnixSocketPair link = make_socket_pair();
  Json settings = to_json(options);
  settings["starter_pid"] = ::getpid();
  ProcessOptions start;
  start.command = {find_saver().string()};
  start.fds = {{kSocketFd, link.theirs.get()}, {kMemoryFd, memory_fd}};
  // The lock is taken before the process starts, so that the next attempt waits for that process.
  StorageLock lock(options.storage);
  settings["locked"] = options.host == 0 && try_to_lock(lock);
  if (settings.at("locked") == true) start.fds[kLockFd] = lock.fd();
  start.command.push_back(to_line(settings));
  return {Process::start(start), std::move(link.ours)};
}

constexpr int kIoIdle = 3 << 13;  // IOPRIO_CLASS_IDLE
constexpr int kIoByNice = 0;      // IOPRIO_CLASS_NONE

void set_priority(pid_t thread, int policy, int io_priority) {
  constexpr int kWhoProcess = 1;  // IOPRIO_WHO_PROCESS, of one thread
  const sched_param parameters{};
  ::sched_setscheduler(thread, policy, &parameters);
  ::syscall(SYS_ioprio_set, kWhoProcess, thread, io_priority);
}

// True if threads may leave idle priority. Without this right a thread keeps it until it ends, even if a rank waits.
bool may_leave_idle_priority() {
  rlimit nice{};
  return ::geteuid() == 0 || (::getrlimit(RLIMIT_NICE, &nice) == 0 && nice.rlim_cur >= 1);
}

}  // namespace

struct Saver::Impl {
  Impl(const SaverOptions& wanted, const SnapshotMemory& memory)
      : options(wanted),
        memory_fd(duplicate(memory.fd())),
        view(SharedMemory::map(duplicate(memory.fd())), memory.local_ranks()),
        started(start_saver(options, memory_fd.get())) {}

  SaverOptions options;
  UniqueFd memory_fd;
  SnapshotMemory view;
  StartedSaver started;
  std::optional<SaveRequest> under_way;
  bool ended = false;  // end() has been called

  bool send(const SaveRequest& request) { return send_message(started.socket, to_message(request)); }

  // Takes the saver off idle priority. The mark comes first: the saver's threads read it before they lower their
  // priority.
  void hurry() const {
    if (!under_way || view.is_urgent(under_way->number)) return;
    view.mark_urgent(under_way->number);
    leave_idle_priority(started.process.pid());
  }

  // Returns the result for a saver that has ended during a save or has sent an invalid answer.
  SaveResult lost(const std::string& why) {
    SaveResult result;
    result.about = under_way->about;
    result.error = "the process dtrain-saver " + why + " while it wrote the checkpoint of batch " +
                   std::to_string(result.about.step);
    if (!options.log.empty()) result.error += "; its messages are in " + options.log.string();
    view.mark_free(under_way->number);
    return result;
  }
  std::string how_it_ended() {
    const auto status = started.process.wait(kEndPatience);
    return status ? "has ended (" + status->describe() + ")" : "has closed its connection";
  }
};

Saver::Saver(const SaverOptions& options, const SnapshotMemory& memory) {
  SaverOptions settled = options;
  settled.storage = std::filesystem::absolute(options.storage);
  if (!settled.log.empty()) settled.log = std::filesystem::absolute(options.log);
  if (settled.host == 0) {
    if (settled.makes_storage) make_folder(settled.storage);
    if (::access(settled.storage.c_str(), W_OK | X_OK) != 0) {
      throw SystemError("cannot write checkpoints into " + settled.storage.string(), errno,
                        errno == ENOENT
                            ? "is its disk still mounted?"
                            : "name another folder as checkpoint_storage, or allow this user to write there");
    }
  }
  impl_ = std::make_unique<Impl>(settled, memory);
}

Saver::~Saver() {
  if (!impl_->ended) end(kSaverPatience);
}

// The saver takes the end of its socket for the end of its rank: it finishes a complete snapshot, and ends.
std::string Saver::end(std::chrono::milliseconds patience) noexcept {
  Process& process = impl_->started.process;
  impl_->ended = true;
  impl_->started.socket.close();
  impl_->hurry();
  const bool finishing = impl_->under_way && impl_->view.all_copied(impl_->under_way->number);
  const auto waits = finishing ? patience : std::min<std::chrono::milliseconds>(patience, kEndPatience);
  const pid_t pid = process.pid();
  try {
    if (process.wait(waits)) return {};
  } catch (const SystemError&) {  // other code has reaped the process
    process.detach();
    return {};
  }
  process.detach();
  std::string text =
      "the process dtrain-saver (" + std::to_string(pid) + ") has not ended within " + format_duration(waits) + ", ";
  text += impl_->under_way ? "while it writes the checkpoint of batch " + std::to_string(impl_->under_way->about.step)
                           : std::string("while it deletes older checkpoints");
  return text + " in " + impl_->options.storage.string() +
         "; it goes on by itself: does the file system answer, and is its disk full?";
}

void Saver::save(const SaveRequest& request) {
  if (impl_->under_way) {
    throw Error("a checkpoint of batch " + std::to_string(impl_->under_way->about.step) + " is still being written");
  }
  if (!impl_->send(request)) {
    impl_->started = start_saver(impl_->options, impl_->memory_fd.get());
    if (!impl_->send(request)) throw SystemError("the process dtrain-saver ends at once", ECHILD);
  }
  impl_->under_way = request;
  impl_->under_way->state = Json();
}

bool Saver::busy() const {
  return impl_->under_way.has_value();
}

std::optional<SaveResult> Saver::poll() {
  return wait(std::chrono::milliseconds(0));
}

std::optional<SaveResult> Saver::wait(std::chrono::milliseconds patience) {
  if (!impl_->under_way) return std::nullopt;
  if (patience.count() != 0) impl_->hurry();
  bool timed_out = false;
  SaveResult result;
  try {
    const auto message = receive_message(impl_->started.socket, patience, &timed_out);
    if (timed_out) return std::nullopt;
    result = message ? save_result_from(Json::parse(*message)) : impl_->lost(impl_->how_it_ended());
  } catch (const Json::exception& error) {
    result = impl_->lost(std::string("has sent an answer that cannot be read (") + error.what() + ")");
  }
  impl_->under_way.reset();
  return result;
}

pid_t Saver::pid() const {
  return impl_->started.process.pid();
}

void step_behind_training() {
  constexpr int kLowest = 19;
  const auto thread = static_cast<pid_t>(::syscall(SYS_gettid));
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), kLowest);  // for this thread alone
  set_priority(thread, may_leave_idle_priority() ? SCHED_IDLE : SCHED_OTHER, kIoIdle);
}

void leave_idle_priority(pid_t process) {
  std::error_code code;
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (std::filesystem::directory_iterator task(tasks, code); !code && task != std::filesystem::directory_iterator();
       task.increment(code)) {
    const std::string name = task->path().filename();
    if (const auto thread = to_number<pid_t>(name)) set_priority(*thread, SCHED_OTHER, kIoByNice);
  }
}

Json to_json(const SaverOptions& options) {
  Json json = {{"storage", options.storage.string()}, {"host", options.host},           {"hosts", options.hosts},
               {"latest", options.retention.latest},  {"best", options.retention.best}, {"log", options.log.string()}};
  return json;
}

SaverOptions saver_options_from(const Json& json) {
  SaverOptions options;
  options.storage = json.at("storage").get<std::string>();
  options.host = json.at("host").get<int>();
  options.hosts = json.at("hosts").get<int>();
  options.retention.latest = json.at("latest").get<int>();
  options.retention.best = json.at("best").get<int>();
  options.log = json.at("log").get<std::string>();
  return options;
}

std::string to_message(const SaveRequest& request) {
  Json files = Json::array();
  for (const FileImage& file : request.files) {
    files.push_back({{"name", file.name}, {"offset", file.offset}, {"bytes", file.bytes}});
    if (file.weights) files.back()["weights"] = *file.weights;
    if (!file.may_be_infinite.empty()) files.back()["may_be_infinite"] = file.may_be_infinite;
  }
  const Json line = {{"number", request.number},
                     {"about", to_json(request.about)},
                     {"files", std::move(files)},
                     {"passed_over", request.passed_over},
                     {"companion", request.companion.string()},
                     {"patience_s", request.patience_s}};
  return to_line(line) + "\n" + to_line(request.state) + "\n";
}

SaveOrder save_order_from(const std::string& message) {
  const auto end = message.find('\n');
  const Json line = Json::parse(message.substr(0, end));
  SaveOrder order;
  order.request.number = line.at("number").get<std::uint64_t>();
  order.request.about = about_from(line.at("about"));
  for (const Json& file : line.at("files")) {
    order.request.files.push_back({file.at("name").get<std::string>(), file.at("offset").get<std::size_t>(),
                                   file.at("bytes").get<std::size_t>()});
    FileImage& image = order.request.files.back();
    if (file.contains("weights")) image.weights = file["weights"].get<std::string>();
    image.may_be_infinite = file.value("may_be_infinite", std::vector<std::string>());
  }
  order.request.passed_over = line.at("passed_over").get<std::vector<std::int64_t>>();
  order.request.companion = line.at("companion").get<std::string>();
  order.request.patience_s = line.at("patience_s").get<double>();
  if (end != std::string::npos) order.state = message.substr(end + 1);
  return order;
}

Json to_json(const SaveResult& result) {
  return {{"about", to_json(result.about)}, {"path", result.path.string()}, {"error", result.error},
          {"bytes", result.bytes},          {"wait_s", result.wait_s},      {"write_s", result.write_s},
          {"cpu_s", result.cpu_s},          {"deleted", result.deleted},    {"not_finite", result.not_finite}};
}

SaveResult save_result_from(const Json& json) {
  SaveResult result;
  result.about = about_from(json.at("about"));
  result.path = json.at("path").get<std::string>();
  result.error = json.at("error").get<std::string>();
  result.bytes = json.at("bytes").get<std::int64_t>();
  result.wait_s = json.at("wait_s").get<double>();
  result.write_s = json.at("write_s").get<double>();
  result.cpu_s = json.at("cpu_s").get<double>();
  result.not_finite = json.at("not_finite").get<std::string>();
  result.deleted = json.at("deleted").get<std::vector<std::string>>();
  return result;
}

bool send_message(UnixSocket& socket, std::string_view message) {
  const UniqueFd content(::memfd_create("dtrain-saver-message", MFD_CLOEXEC));
  if (!content || write_all(content.get(), message) != message.size()) {
    throw SystemError("cannot write a message of " + std::to_string(message.size()) + " bytes into memory", errno);
  }
  const int fd = content.get();
  return socket.send("message", std::span(&fd, 1));
}

std::optional<std::string> receive_message(UnixSocket& socket, std::chrono::milliseconds timeout, bool* timed_out) {
  const auto envelope = socket.receive(timeout, timed_out);
  if (!envelope) return std::nullopt;
  if (envelope->fds.size() != 1) throw SystemError("a message to or from dtrain-saver has no content", EBADMSG);
  const int fd = envelope->fds.front().get();
  const off_t size = ::lseek(fd, 0, SEEK_END);
  std::string content(static_cast<std::size_t>(std::max<off_t>(size, 0)), '\0');
  std::size_t have = 0;
  while (have < content.size()) {
    const ssize_t count = ::pread(fd, content.data() + have, content.size() - have, static_cast<off_t>(have));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw SystemError("cannot read a message to or from dtrain-saver", count < 0 ? errno : EBADMSG);
    have += static_cast<std::size_t>(count);
  }
  return content;
}

}  // namespace dtrain::checkpoints
