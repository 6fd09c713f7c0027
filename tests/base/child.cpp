// A program for the subprocess tests: `base_child ACTION [ARGUMENT]`.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

namespace {

// The answer goes to descriptor 9, which the test hands over.
void answer(const std::string& text) {
  if (::write(9, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::_Exit(99);
}

std::string open_descriptors() {
  std::string list;
  DIR* folder = ::opendir("/proc/self/fd");
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

std::string signal_state() {
  sigset_t blocked;
  ::sigprocmask(SIG_BLOCK, nullptr, &blocked);
  struct sigaction usr1 {};
  ::sigaction(SIGUSR1, nullptr, &usr1);
  struct sigaction pipe {};
  ::sigaction(SIGPIPE, nullptr, &pipe);
  return std::string(::sigismember(&blocked, SIGTERM) ? "blocked" : "open") +
         (usr1.sa_handler == SIG_DFL ? " default" : " changed") +
         (pipe.sa_handler == SIG_DFL ? " default" : " changed");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  if (action == "exit") return std::atoi(argument.c_str());
  if (action == "signal") ::raise(std::atoi(argument.c_str()));
  if (action == "environment") {
    const char* value = std::getenv(argument.c_str());
    answer(value ? value : "(not set)");
  }
  if (action == "descriptors") answer(open_descriptors());
  if (action == "affinity") answer(affinity());
  if (action == "signals") answer(signal_state());
  if (action == "folder") {
    char path[4096];
    answer(::getcwd(path, sizeof path));
  }
  if (action == "group") answer(std::to_string(::getpgrp()) + " " + std::to_string(::getpid()));
  // A descendant that lives on; it keeps descriptor 9 open, so that its end can be seen there.
  if (action == "leave-child" && ::fork() == 0) ::pause();
  if (action == "sleep") {
    answer("ready");
    ::pause();
  }
  return 0;
}
