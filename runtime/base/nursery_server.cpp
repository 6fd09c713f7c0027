// The side of a nursery that is the program.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/nursery.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

namespace fs = std::filesystem;
using Fork = std::function<pid_t()>;

constexpr std::chrono::milliseconds kForever{-1};

std::size_t thread_count() {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator()));
}

// Libraries with threads that they can start again (OpenBLAS) end them before a fork.
void end_threads_of_libraries(const Fork& fork) {
  const pid_t child = fork();
  if (child == 0) ::_exit(0);
  if (child > 0) static_cast<void>(TEMP_FAILURE_RETRY(::waitpid(child, nullptr, 0)));
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Forks would share the place in such a file, or a connection. Empty: no file is open.
std::string open_file(int socket) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const int fd = to_number<int>(entry.path().filename().string()).value_or(0);
    if (fd <= STDERR_FILENO || fd == socket) continue;
    std::error_code code;
    const std::string file = fs::read_symlink(entry.path(), code);
    if (!code && !file.starts_with("/proc/")) return file;  // that is this loop's own
  }
  return {};
}

bool take_priority_of_parent() {
  const int of_parent = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::getppid()));
  return ::getpriority(PRIO_PROCESS, 0) == of_parent || ::setpriority(PRIO_PROCESS, 0, of_parent) == 0;
}

// Empty: forks of this process are as new processes of the program.
std::string why_no_copies(int socket, const Fork& fork) {
  if (has_children()) return "the program has started other processes";
  if (thread_count() > 1) end_threads_of_libraries(fork);
  if (const std::size_t threads = thread_count(); threads > 1) {
    return "the program has " + std::to_string(threads) + " threads when it starts as a rank";
  }
  if (const std::string file = open_file(socket); !file.empty()) return "the program has opened " + file;
  if (!take_priority_of_parent()) return "its priority cannot be raised";
  return {};
}

std::vector<std::string> texts_of(int file) {
  std::string block;
  char buffer[4096];
  off_t at = 0;
  for (ssize_t count = 0; (count = TEMP_FAILURE_RETRY(::pread(file, buffer, sizeof buffer, at))) > 0; at += count) {
    block.append(buffer, static_cast<std::size_t>(count));
  }
  std::vector<std::string> texts = split(block, '\0');
  texts.pop_back();  // behind the last zero byte
  return texts;
}

void close_from(unsigned first) {
  if (::syscall(SYS_close_range, first, ~0u, 0) == 0) return;
  const long limit = std::min(::sysconf(_SC_OPEN_MAX), 65536L);
  for (long fd = first; fd < limit; ++fd) ::close(static_cast<int>(fd));
}

[[noreturn]] void give_up() {
  ::_exit(127);
}

// Gives each descriptor its number, and closes all others. Returns the new number of the gate.
int arrange(std::vector<UniqueFd>& received, const std::vector<int>& numbers) {
  const int highest = numbers.empty() ? STDERR_FILENO : *std::ranges::max_element(numbers);
  const int gate = std::max(highest, STDERR_FILENO) + 1;
  std::vector<int> sources;
  for (UniqueFd& fd : received) {
    sources.push_back(::fcntl(fd.release(), F_DUPFD_CLOEXEC, gate + 1));
    if (sources.back() < 0) give_up();
  }
  if (::dup3(sources[1], gate, O_CLOEXEC) < 0) give_up();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (::dup2(sources[i + 2], numbers[i]) < 0) give_up();
  }
  for (int fd = STDERR_FILENO + 1; fd < gate; ++fd) {
    if (std::ranges::find(numbers, fd) == numbers.end()) ::close(fd);
  }
  close_from(static_cast<unsigned>(gate) + 1);
  return gate;
}

void replace_environment(const std::vector<std::string>& texts) {
  ::clearenv();
  for (std::size_t i = 1; i < texts.size(); ++i) {
    const auto equals = texts[i].find('=');
    if (equals == std::string::npos) continue;
    if (::setenv(texts[i].substr(0, equals).c_str(), texts[i].c_str() + equals + 1, 1) != 0) give_up();
  }
}

void bind_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) give_up();
}

// Makes this fork what the request says.
void set_up(UnixMessage& request) {
  const Json json = Json::parse(request.data);
  const std::vector<std::string> texts = texts_of(request.fds.at(0).get());
  ::setpgid(0, 0);
  bind_to(json.at("cpus").get<std::vector<int>>());
  if (::chdir(texts.at(0).c_str()) != 0) give_up();
  replace_environment(texts);
  UnixSocket gate{UniqueFd(arrange(request.fds, json.at("fds").get<std::vector<int>>()))};
  if (!gate.send("set up") || !gate.receive(kForever)) give_up();
}

// Forks a child of a process that ends at once, so that the kernel gives it to this process's parent. Returns its
// number, 0 in the child. The process between shares this one's memory (vfork), which stands still meanwhile: to copy
// the page tables of an interpreter with torch takes 30 ms, and as much again when they are freed.
[[gnu::noinline]] pid_t fork_to_parent(const Fork& fork) {
  volatile pid_t child = -1;
  const pid_t between = ::vfork();
  if (between == 0) {
    child = fork();
    if (child == 0) return 0;
    ::_exit(0);
  }
  if (between > 0) static_cast<void>(TEMP_FAILURE_RETRY(::waitpid(between, nullptr, 0)));
  return child;
}

// Returns true in the new process.
bool fork_for(UnixSocket& socket, UnixMessage& request, const Fork& fork) {
  const pid_t child = fork_to_parent(fork);
  if (child == 0) {
    socket.close();
    set_up(request);
    return true;
  }
  socket.send(std::to_string(child));
  return false;
}

}  // namespace

void serve_nursery(const Fork& fork) {
  const char* const text = ::getenv(kNurseryVariable);
  if (!text) return;
  try {
    UnixSocket socket{UniqueFd(to_number<int>(text).value_or(-1))};
    ::fcntl(socket.fd(), F_SETFD, FD_CLOEXEC);
    const std::string why = why_no_copies(socket.fd(), fork);
    socket.send(why.empty() ? "ready" : why);
    if (!why.empty()) ::_exit(0);
    while (auto request = socket.receive(kForever)) {
      if (fork_for(socket, *request, fork)) return;
    }
  } catch (const std::exception&) {
    ::_exit(1);
  }
  ::_exit(0);
}

}  // namespace dtrain
