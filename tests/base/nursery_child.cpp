// A program for the nursery's tests. Its argument says what it does before it can become a nursery: threads, file,
// process, early_end, or nothing. Afterwards it answers on descriptor 9 what it is, and does what DTRAIN_ACTION says:
// "exit 7", "signal 11", "pause".
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtrain/base/json.h"
#include "dtrain/base/nursery.h"

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "(not set)";
}

std::string open_descriptors() {
  std::string list;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(folder)) list += std::string(entry->d_name) + " ";
  }
  ::closedir(folder);
  return list;
}

std::string affinity() {
  cpu_set_t cpus;
  ::sched_getaffinity(0, sizeof cpus, &cpus);
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) list += std::to_string(cpu) + " ";
  }
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string before = argc > 1 ? argv[1] : "";
  if (before == "threads") std::thread([] { ::pause(); }).detach();
  if (before == "file") static_cast<void>(::open("/proc/self/exe", O_RDONLY));
  if (before == "process" && ::fork() == 0) {
    ::sleep(5);
    ::_exit(0);
  }
  if (before == "early_end") return 3;
  dtrain::serve_nursery();
  const std::string text = dtrain::to_line({{"pid", ::getpid()},
                                            {"parent", ::getppid()},
                                            {"group", ::getpgrp()},
                                            {"cpus", affinity()},
                                            {"folder", std::filesystem::current_path().string()},
                                            {"descriptors", open_descriptors()},
                                            {"priority", ::getpriority(PRIO_PROCESS, 0)},
                                            {"COLOUR", variable("COLOUR")},
                                            {"DTRAIN_RANK", variable("DTRAIN_RANK")},
                                            {"DTRAIN_NURSERY", variable("DTRAIN_NURSERY")}});
  if (::write(9, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return 99;
  const std::string action = variable("DTRAIN_ACTION");
  if (action.starts_with("exit ")) return std::atoi(action.c_str() + 5);
  if (action.starts_with("signal ")) ::raise(std::atoi(action.c_str() + 7));
  if (action == "pause") ::pause();
  return 0;
}
