#include "dtrain/base/limits.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include <sys/resource.h>
#include <unistd.h>

#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain {
namespace {

std::optional<rlim_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

std::string number_in(const char* file) {
  std::string text;
  std::ifstream(file) >> text;
  return text;
}

// Of this process, in bytes.
struct Sizes {
  std::uint64_t address_space = 0, data = 0;
};

Sizes sizes_of_process() {
  std::array<std::uint64_t, 6> pages{};  // size, resident, shared, text, lib, data
  std::ifstream file("/proc/self/statm");
  for (std::uint64_t& value : pages) file >> value;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {pages[0] * page, pages[5] * page};
}

// The stack of a new thread takes address space, and its lack is the same error as that of processes.
bool has_no_room_for_stack() {
  const auto space = soft_limit(RLIMIT_AS);
  const rlim_t stack = soft_limit(RLIMIT_STACK).value_or(2u << 20);
  return space && sizes_of_process().address_space + 2 * stack > *space;
}

std::string bytes_text(std::uint64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::terminate_handler handler_before = nullptr;
std::function<void(const std::exception&)>& reporter() {
  static auto* const function = new std::function<void(const std::exception&)>;  // threads may outlive static objects
  return *function;
}

// Where no memory is left the report needs some, which is kept for it. Pages that are not written to cost none.
constexpr std::chrono::seconds kReportPatience{1};
constexpr std::size_t kKept = 8u << 20;
std::atomic<char*> kept_for_report{nullptr};
std::atomic<bool> is_ending{false};

void end_after_unhandled() {
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception& error) {
    if (is_limit_error(error)) end_by_limit(error);
  } catch (...) {
  }
  if (handler_before) handler_before();
  std::abort();
}

}  // namespace

std::string limit_of_processes() {
  if (const auto group = full_of_processes(cgroups_of(0))) {
    return describe_cgroup(group->group) + " may have " + std::to_string(group->most) +
           " processes and threads, and has them (" + group->file + "): raise that, or end other processes there";
  }
  if (has_no_room_for_stack()) return limit_of_memory();
  if (const auto most = soft_limit(RLIMIT_NPROC); most && ::geteuid() != 0) {
    return "RLIMIT_NPROC lets this user have " + std::to_string(*most) +
           " processes and threads at a time: raise it (ulimit -u), or end other processes of the user";
  }
  return "the machine may have " + number_in("/proc/sys/kernel/threads-max") + " threads (kernel.threads-max) and " +
         number_in("/proc/sys/kernel/pid_max") + " processes (kernel.pid_max): raise these, or end other processes";
}

std::string limit_of_fork(int code) {
  return code == EAGAIN ? limit_of_processes() : code == ENOMEM ? limit_of_memory() : std::string();
}

std::string limit_of_file_size() {
  if (const auto most = soft_limit(RLIMIT_FSIZE)) {
    return "RLIMIT_FSIZE lets a file of this process have " + bytes_text(*most) + ": raise it (ulimit -f)";
  }
  return "the file system has no room for so long a file: write somewhere else";
}

std::string limit_of_memory() {
  const Sizes now = sizes_of_process();
  const auto space = soft_limit(RLIMIT_AS), data = soft_limit(RLIMIT_DATA);
  const auto left = [](rlim_t most, std::uint64_t used) { return most > used ? most - used : 0; };
  if (space && (!data || left(*space, now.address_space) <= left(*data, now.data))) {
    return "RLIMIT_AS lets this process have " + bytes_text(*space) + " of address space, and it has " +
           bytes_text(now.address_space) + ": raise it (ulimit -v), or let the process need less";
  }
  if (data) {
    return "RLIMIT_DATA lets this process have " + bytes_text(*data) + " of data, and it has " + bytes_text(now.data) +
           ": raise it (ulimit -d), or let the process need less";
  }
  const auto available = available_memory();
  return (available ? "this machine has " + bytes_text(*available) + " left" : "this machine has no more") +
         ": end other processes, or let this one need less";
}

bool is_limit_error(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  // That of a thread that cannot start; a socket or a file that must be tried again has the system's category.
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  return system != nullptr && system->code().category() == std::generic_category() &&
         system->code() == std::errc::resource_unavailable_try_again &&
         dynamic_cast<const std::filesystem::filesystem_error*>(&error) == nullptr;
}

void end_by_limit(const std::exception& error) {
  if (is_ending.exchange(true)) std::this_thread::sleep_for(kReportPatience);  // another thread reports
  delete[] kept_for_report.exchange(nullptr);
  try {
    if (reporter()) {
      reporter()(error);
    } else {
      std::fprintf(stderr, "dtrain: %s\n", describe(error).c_str());
    }
    std::fflush(stderr);
  } catch (const std::exception&) {
    constexpr std::string_view kText = "dtrain: out of memory, even for the report of it\n";
    static_cast<void>(!::write(STDERR_FILENO, kText.data(), kText.size()));
  }
  ::_exit(static_cast<int>(ExitCode::kRunFailed));
}

void prepare_for_limits(std::function<void(const std::exception&)> report) {
  if (!kept_for_report) kept_for_report = new (std::nothrow) char[kKept];
  reporter() = std::move(report);
  struct sigaction present {};
  if (::sigaction(SIGXFSZ, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) std::signal(SIGXFSZ, SIG_IGN);
  if (std::get_terminate() != end_after_unhandled) handler_before = std::set_terminate(end_after_unhandled);
}

void refuse_thread(const std::string& of, int code) {
  throw SystemError("cannot start the thread of " + of, code, limit_of_fork(code));
}

}  // namespace dtrain
