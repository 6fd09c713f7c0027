#include "dtrain/checkpoint/saver.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/units.h"
#include "saver/messages.h"
#include "saver/priority.h"
#include "storage_folder.h"

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
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw SystemError("cannot make a socket for dtrain-saver", errno);
  }
  UnixSocket ours{UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);
  Json settings = to_json(options);
  settings["starter_pid"] = ::getpid();
  ProcessOptions start;
  start.command = {find_saver().string()};
  start.fds = {{kSocketFd, theirs.get()}, {kMemoryFd, memory_fd}};
  // The lock is taken before the process starts, so that the next attempt waits for that process.
  StorageLock lock(options.storage);
  settings["locked"] = options.host == 0 && try_to_lock(lock);
  if (settings.at("locked") == true) start.fds[kLockFd] = lock.fd();
  start.command.push_back(to_line(settings));
  return {Process::start(start), std::move(ours)};
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

}  // namespace dtrain::checkpoints
