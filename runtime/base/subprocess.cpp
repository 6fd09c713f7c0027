#include "dtrain/base/subprocess.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtrain/base/limits.h"
#include "dtrain/base/text.h"

extern "C" char** environ;

namespace dtrain {
namespace {

enum class Step : int { kFds, kAffinity, kFolder, kExec };
struct ChildFailure {
  Step step;
  int code;
};

struct FdPair {
  int child;
  int parent;
};

// The data that the child needs, made before the fork: between fork and exec only calls that are safe in a signal
// handler are allowed, so no allocation.
struct Prepared {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::vector<FdPair> fds;
  cpu_set_t cpus{};
  const char* program = nullptr;
  const char* folder = nullptr;
  bool bind = false;
  bool new_group = false;
  bool ends_with_parent = false;
  pid_t parent = 0;
  std::optional<int> priority;
  int lowest_spare_fd = 3;
  int report_fd = -1;
};

[[noreturn]] void give_up(int report_fd, Step step) {
  const ChildFailure failure{step, errno};
  // A pipe takes so few bytes in one write; if the write fails, the exit status still shows the failure.
  [[maybe_unused]] const ssize_t written = ::write(report_fd, &failure, sizeof failure);
  ::_exit(127);
}

void close_all_on_exec() {
  constexpr unsigned kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC, absent from older headers
  if (::syscall(SYS_close_range, 3u, ~0u, kCloseOnExec) == 0) return;
  const long limit = std::min(::sysconf(_SC_OPEN_MAX), 65536L);
  for (int fd = 3; fd < limit; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

[[noreturn]] void run_child(Prepared& prepared) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  if (prepared.ends_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != prepared.parent) ::_exit(127);
  }
  if (prepared.priority) ::setpriority(PRIO_PROCESS, 0, *prepared.priority);
  if (prepared.new_group) ::setpgid(0, 0);
  close_all_on_exec();
  // The sources first move above all requested numbers, so that no mapping overwrites the source of another.
  for (FdPair& pair : prepared.fds) {
    pair.parent = ::fcntl(pair.parent, F_DUPFD_CLOEXEC, prepared.lowest_spare_fd);
    if (pair.parent < 0) give_up(prepared.report_fd, Step::kFds);
  }
  for (const FdPair& pair : prepared.fds) {
    if (::dup2(pair.parent, pair.child) < 0) give_up(prepared.report_fd, Step::kFds);
  }
  if (prepared.bind && ::sched_setaffinity(0, sizeof prepared.cpus, &prepared.cpus) != 0) {
    give_up(prepared.report_fd, Step::kAffinity);
  }
  if (prepared.folder && ::chdir(prepared.folder) != 0) give_up(prepared.report_fd, Step::kFolder);
  ::execve(prepared.program, prepared.arguments.data(), prepared.environment.data());
  give_up(prepared.report_fd, Step::kExec);
}

std::string find_program(const std::string& program, const std::vector<std::string>& environment) {
  if (program.find('/') != std::string::npos) return program;
  const auto entry = std::ranges::find_if(environment, [](const std::string& s) { return s.starts_with("PATH="); });
  const std::string path = entry == environment.end() ? std::string() : entry->substr(5);
  const std::filesystem::path found = find_in_path(program, entry == environment.end() ? nullptr : &path);
  if (!found.empty()) return found;
  throw SystemError("cannot start '" + program + "'", ENOENT, "no folder of PATH holds a program of that name");
}

// True if a process of this user may lower its priority and later take this process's again.
bool may_raise_priority(int priority) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_cur >= static_cast<rlim_t>(20 - priority)) return true;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("CapEff:")) continue;
    return (std::stoull(line.substr(7), nullptr, 16) >> CAP_SYS_NICE & 1) != 0;
  }
  return false;
}

std::optional<int> background_priority() {
  constexpr int kLower = 5;  // a quarter of a core that another process wants, too
  const int mine = ::getpriority(PRIO_PROCESS, 0);
  if (!may_raise_priority(mine)) return std::nullopt;
  return mine + kLower;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string describe_failure(const ProcessOptions& options, Step step) {
  std::string text = "cannot start '" + options.command.front() + "'";
  if (step == Step::kFds) text += ": its descriptors";
  if (step == Step::kFolder) text += ": the working folder " + options.working_folder.string();
  if (step == Step::kAffinity) {
    text += ": binding it to cores";
    for (const int cpu : options.cpus) text += " " + std::to_string(cpu);
  }
  return text;
}

void reap(pid_t pid) {
  static_cast<void>(TEMP_FAILURE_RETRY(::waitpid(pid, nullptr, 0)));
}

std::string loader_error() {
  const char* const text = ::dlerror();
  return text ? text : "no reason given";
}

// Looks beside this library, and beside the other libraries of dtrain that this process has loaded: in a wheel, modules
// that depend on the version of libtorch have a folder of their own.
std::filesystem::path find_module(const std::string& file) {
  static const char inside_this_library = 0;
  std::vector<std::filesystem::path> candidates{library_folder(&inside_this_library) / file};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::filesystem::path library = info->dlpi_name;
        auto& all = *static_cast<std::vector<std::filesystem::path>*>(found);
        if (library.filename().string().starts_with("libdtrain_")) {
          all.push_back(library.parent_path() / all.front().filename());
        }
        return 0;
      },
      &candidates);
  std::error_code code;
  const auto found = std::ranges::find_if(candidates, [&](const auto& path) { return exists(path, code); });
  return found == candidates.end() ? candidates.front() : *found;
}

}  // namespace

std::string ExitStatus::describe() const {
  if (signal == 0) return "exit status " + std::to_string(code);
  const char* name = ::sigabbrev_np(signal);
  return "killed by signal " + std::to_string(signal) + (name ? std::string(" (SIG") + name + ")" : "");
}

Process Process::start(const ProcessOptions& options) {
  if (options.command.empty()) throw SystemError("cannot start a process: no program given", EINVAL);
  std::vector<std::string> arguments = options.command;
  std::vector<std::string> environment = environment_of(options);
  const std::string program = find_program(options.command.front(), environment);
  Prepared prepared;
  prepared.program = program.c_str();
  prepared.arguments = pointers(arguments);
  prepared.environment = pointers(environment);
  prepared.folder = options.working_folder.empty() ? nullptr : options.working_folder.c_str();
  prepared.new_group = options.new_process_group;
  prepared.ends_with_parent = options.ends_with_parent;
  prepared.parent = ::getpid();
  if (options.in_background) prepared.priority = background_priority();
  for (const auto& [child, parent] : options.fds) {
    prepared.fds.push_back({child, parent});
    prepared.lowest_spare_fd = std::max(prepared.lowest_spare_fd, child + 1);
  }
  CPU_ZERO(&prepared.cpus);
  prepared.bind = !options.cpus.empty();
  for (const int cpu : options.cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) throw SystemError(describe_failure(options, Step::kAffinity), EINVAL);
    CPU_SET(static_cast<std::size_t>(cpu), &prepared.cpus);
  }

  Pipe report = make_pipe();
  UniqueFd spare_writer(::fcntl(report.writer.get(), F_DUPFD_CLOEXEC, prepared.lowest_spare_fd));
  if (!spare_writer) throw SystemError("cannot make a pipe", errno);
  report.writer.reset();
  prepared.report_fd = spare_writer.get();

  pid_t pid = -1;
  {
    // Signals are blocked until the child has reset its handlers: a handler of this program must not run in the child.
    const BlockedSignals blocked;
    pid = ::fork();
    if (pid == 0) run_child(prepared);
  }
  if (pid < 0) {
    const int code = errno;
    throw SystemError("cannot start '" + options.command.front() + "'", code, limit_of_fork(code));
  }
  if (options.new_process_group) ::setpgid(pid, pid);  // here too, so that kill_group works at once
  spare_writer.reset();

  ChildFailure failure{};
  if (TEMP_FAILURE_RETRY(::read(report.reader.get(), &failure, sizeof failure)) == sizeof failure) {
    reap(pid);
    throw SystemError(describe_failure(options, failure.step), failure.code);
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const int code = errno;
    ::kill(pid, SIGKILL);
    reap(pid);
    throw SystemError("cannot watch process " + std::to_string(pid), code, "dtrain needs Linux 5.3 or newer");
  }
  return Process(pid, std::move(pidfd), options.new_process_group);
}

Process Process::adopt(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  siginfo_t info{};
  if (!pidfd || ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    throw SystemError("process " + std::to_string(pid) + " is no child of this one", errno);
  }
  return Process(pid, std::move(pidfd), /*own_group=*/true);
}

std::vector<std::string> environment_of(const ProcessOptions& options) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string name(text.substr(0, text.find('=')));
    const bool dropped =
        options.environment.contains(name) || std::ranges::find(options.unset, name) != options.unset.end();
    if (!dropped) result.emplace_back(text);
  }
  for (const auto& [name, value] : options.environment) result.push_back(name + "=" + value);
  return result;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      own_group_(other.own_group_),
      status_(other.status_) {}

// The process that this object had before is killed and reaped with `other`.
Process& Process::operator=(Process other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(own_group_, other.own_group_);
  std::swap(status_, other.status_);
  return *this;
}

Process::~Process() {
  if (pid_ < 0 || status_) return;
  own_group_ ? kill_group(SIGKILL) : kill(SIGKILL);
  reap(pid_);
}

std::optional<ExitStatus> Process::wait(std::chrono::milliseconds timeout) {
  if (status_ || pid_ < 0) return status_;
  if (!wait_readable(pidfd_.get(), timeout)) return std::nullopt;
  // Processes that it left running in its group end with it. The kill comes before the process is reaped: afterwards
  // its number could already belong to another group.
  kill_group(SIGKILL);
  int raw = 0;
  if (TEMP_FAILURE_RETRY(::waitpid(pid_, &raw, 0)) < 0) {
    throw SystemError("cannot wait for process " + std::to_string(pid_), errno);
  }
  status_ = WIFSIGNALED(raw) ? ExitStatus{0, WTERMSIG(raw)} : ExitStatus{WEXITSTATUS(raw), 0};
  return status_;
}

ExitStatus Process::wait() {
  const auto status = wait(std::chrono::milliseconds(-1));
  if (!status) throw SystemError("cannot wait for a process that was detached", ECHILD);
  return *status;
}

void Process::kill(int signal) const {
  if (pid_ > 0 && !status_) ::kill(pid_, signal);
}

void Process::kill_group(int signal) const {
  if (pid_ > 0 && !status_ && own_group_) ::kill(-pid_, signal);
}

bool is_program(const std::filesystem::path& file) {
  std::error_code code;
  return ::access(file.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(file, code);
}

std::filesystem::path find_in_path(const std::string& name, const std::string* path) {
  for (const std::string& folder : split(path ? *path : "/usr/local/bin:/usr/bin:/bin", ':')) {
    std::filesystem::path candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (is_program(candidate)) return candidate;
  }
  return {};
}

std::string first_output_line(const std::vector<std::string>& command) {
  Pipe output = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Process process =
      Process::start({.command = command, .fds = {{0, nothing.get()}, {1, output.writer.get()}, {2, nothing.get()}}});
  output.writer.reset();
  const auto status = process.wait(std::chrono::seconds(5));
  char buffer[512];
  const ssize_t count = status && status->success() ? ::read(output.reader.get(), buffer, sizeof buffer) : 0;
  const std::string text(buffer, static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  return first_line(text);
}

std::filesystem::path executable_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

std::filesystem::path library_folder(const void* address_inside) {
  Dl_info info{};
  if (::dladdr(address_inside, &info) == 0 || !info.dli_fname) {
    throw SystemError("cannot find the library that holds an address of this program", ENOENT);
  }
  std::error_code code;
  const auto path = std::filesystem::canonical(info.dli_fname, code);
  return code ? executable_path().parent_path() : path.parent_path();
}

std::filesystem::path find_program_beside(const void* address_inside_library, const std::string& name) {
  const std::filesystem::path beside_library = library_folder(address_inside_library) / ".." / "bin" / name;
  const std::filesystem::path beside_program = executable_path().parent_path() / name;
  for (const auto& candidate : {beside_library, beside_program}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw SystemError("cannot find " + name + ": neither " + beside_library.lexically_normal().string() + " nor " +
                        beside_program.string() + " is there",
                    ENOENT, "install " + name + " together with dtrain, or build the target of that name");
}

void ignore_polite_ends() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) std::signal(signal, SIG_IGN);
}

void redirect_output(const std::filesystem::path& log) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const UniqueFd file(log.empty() ? -1 : ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (null) ::dup2(null.get(), STDIN_FILENO);
  const int target = file ? file.get() : null.get();
  if (target < 0) return;
  ::dup2(target, STDOUT_FILENO);
  ::dup2(target, STDERR_FILENO);
}

OpenedModule try_open_module(const ModuleFile& file) {
  const std::filesystem::path path = find_module("lib" + file.name + ".so");
  std::error_code code;
  if (!std::filesystem::exists(path, code)) {
    return {nullptr, file.what + " is not part of this dtrain: there is no " + path.string(), file.remedy_module};
  }
  for (const std::string& library : file.needs) {
    if (!::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      return {nullptr, file.what + " needs " + library + ", which cannot be opened: " + loader_error(),
              file.remedy_needs};
    }
  }
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) return {nullptr, file.what + " cannot be opened: " + loader_error(), file.remedy_module};
  void* const factory = ::dlsym(module, file.factory.c_str());
  if (factory) return {factory, {}, {}};
  return {nullptr, path.string() + " is not a module of dtrain: it has no " + file.factory, file.remedy_module};
}

}  // namespace dtrain
