// A program for the subprocess tests: `base_child ACTION [ARGUMENT]`.
#include <csignal>
#include <string>

#include <unistd.h>

#include "told_by_child.h"

namespace {

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
  using namespace dtrain::test;
  const std::string action = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  if (action == "exit") return std::atoi(argument.c_str());
  if (action == "signal") ::raise(std::atoi(argument.c_str()));
  if (action == "environment") tell(variable(argument.c_str()));
  if (action == "descriptors") tell(open_descriptors());
  if (action == "affinity") tell(affinity());
  if (action == "signals") tell(signal_state());
  if (action == "folder") {
    char path[4096];
    tell(::getcwd(path, sizeof path));
  }
  if (action == "group") tell(std::to_string(::getpgrp()) + " " + std::to_string(::getpid()));
  // A descendant that lives on; it keeps descriptor 9 open, so that its end can be seen there.
  if (action == "leave-child" && ::fork() == 0) ::pause();
  if (action == "sleep") {
    tell("ready");
    ::pause();
  }
  return 0;
}
