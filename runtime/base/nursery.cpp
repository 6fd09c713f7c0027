// The parent's side of a nursery.
#include "dtrain/base/nursery.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

constexpr int kSocketFd = 3;  // its number in the nursery
constexpr auto kPatience = std::chrono::seconds(3);

ProcessOptions options_of_nursery(ProcessOptions options, int socket, int nothing, Nursery::Loading loading) {
  options.environment[kNurseryVariable] = std::to_string(kSocketFd);
  options.fds = {{0, nothing}, {1, nothing}, {2, nothing}, {kSocketFd, socket}};
  options.in_background = loading == Nursery::Loading::kInBackground;
  // Each new process would look for libtorch's functions when it first calls them, for 8 ms in all. In the background
  // nobody waits for the loader that finds all of them at once.
  if (options.in_background) options.environment["LD_BIND_NOW"] = "1";
  options.ends_with_parent = true;
  return options;
}

// The variables that libraries may have read while the program was loaded.
std::vector<std::string> variables_of_loading(const ProcessOptions& options) {
  std::vector<std::string> result = environment_of(options);
  std::erase_if(result, [](const std::string& variable) { return variable.starts_with("DTRAIN_"); });
  std::ranges::sort(result);
  return result;
}

// Texts in a file without a name, each with a zero byte at its end.
UniqueFd file_of(const std::vector<std::string>& texts) {
  std::string block;
  for (const std::string& text : texts) block += text + '\0';
  UniqueFd file(::memfd_create("dtrain-nursery", MFD_CLOEXEC));
  if (!file) throw SystemError("cannot make a file in memory", errno);
  if (write_all(file.get(), block) != block.size()) throw SystemError("cannot write a file in memory", errno);
  return file;
}

// While this object lives, processes whose parent ends become children of this one.
class Subreaper {
 public:
  Subreaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Subreaper& operator=(Subreaper&&) = delete;

 private:
  int before_ = 0;
};

std::string receive_text(UnixSocket& socket) {
  const auto message = socket.receive(kPatience);
  return message ? message->data : std::string();
}

Process start_nursery(const ProcessOptions& options, UnixSocket& socket, Nursery::Loading loading) {
  UnixSocketPair pair = make_socket_pair();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  socket = std::move(pair.ours);
  return Process::start(options_of_nursery(options, pair.theirs.get(), nothing.get(), loading));
}

}  // namespace

Nursery::Nursery(ProcessOptions options, Loading loading)
    : options_(std::move(options)), process_(start_nursery(options_, socket_, loading)) {}

Nursery::State Nursery::look() {
  while (state_ != State::kEnded) {
    bool timed_out = false;
    const auto message = socket_.receive(std::chrono::milliseconds(0), &timed_out);
    if (timed_out) break;
    if (!message) {
      end({});
    } else if (message->data == "ready") {
      state_ = State::kReady;
    } else {
      end(message->data);
    }
  }
  return state_;
}

void Nursery::end(const std::string& why) {
  socket_.close();
  auto status = process_.wait(std::chrono::milliseconds(why.empty() ? 1000 : 0));
  if (!status) {
    process_.kill_group(SIGKILL);
    status = process_.wait();
  }
  why_ended_ = why.empty() ? status->describe() : why;
  state_ = State::kEnded;
}

bool Nursery::has_loaded_like(const ProcessOptions& options) const {
  return options.command == options_.command && options.cpus.size() == options_.cpus.size() &&
         variables_of_loading(options) == variables_of_loading(options_);
}

std::optional<Process> Nursery::start(const ProcessOptions& options) {
  if (look() != State::kReady || !has_loaded_like(options)) return std::nullopt;
  try {
    if (auto process = fork(options)) return process;
    end("it has not answered");
  } catch (const SystemError& error) {
    end(error.what());
  }
  return std::nullopt;
}

// The new process waits at the gate until this process knows it, and ends there if this process gives it up.
std::optional<Process> Nursery::fork(const ProcessOptions& options) {
  const Subreaper subreaper;
  UnixSocketPair gate = make_socket_pair();
  std::vector<std::string> texts = environment_of(options);
  texts.insert(texts.begin(), options.working_folder.empty() ? std::filesystem::current_path().string()
                                                             : options.working_folder.string());
  const UniqueFd file = file_of(texts);
  std::vector<int> numbers;
  std::vector<int> fds{file.get(), gate.theirs.get()};
  for (const auto& [number, fd] : options.fds) {
    numbers.push_back(number);
    fds.push_back(fd);
  }
  if (!socket_.send(to_line({{"fds", numbers}, {"cpus", options.cpus}}), fds)) return std::nullopt;
  gate.theirs.reset();
  const auto pid = to_number<pid_t>(receive_text(socket_));
  if (!pid) return std::nullopt;
  Process process = Process::adopt(*pid);
  if (receive_text(gate.ours) != "set up" || !gate.ours.send("go")) return std::nullopt;
  return process;
}

}  // namespace dtrain
