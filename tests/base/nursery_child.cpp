// A program for the nursery's tests. Its argument says what it does before it can become a nursery: threads, file,
// process, early_end, or nothing. Afterwards it answers on descriptor 9 what it is, and does what DTRAIN_ACTION says:
// "exit 7", "signal 11", "pause".
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtrain/base/json.h"
#include "dtrain/base/nursery.h"
#include "told_by_child.h"

int main(int argc, char** argv) {
  using namespace dtrain::test;
  const std::string before = argc > 1 ? argv[1] : "";
  if (before == "threads") std::thread([] { ::pause(); }).detach();
  if (before == "file") static_cast<void>(::open("/proc/self/exe", O_RDONLY));
  if (before == "process" && ::fork() == 0) {
    ::sleep(5);
    ::_exit(0);
  }
  if (before == "early_end") return 3;
  dtrain::serve_nursery();
  tell(dtrain::to_line({{"pid", ::getpid()},
                        {"parent", ::getppid()},
                        {"group", ::getpgrp()},
                        {"cpus", affinity()},
                        {"folder", std::filesystem::current_path().string()},
                        {"descriptors", open_descriptors()},
                        {"priority", ::getpriority(PRIO_PROCESS, 0)},
                        {"COLOUR", variable("COLOUR")},
                        {"DTRAIN_RANK", variable("DTRAIN_RANK")},
                        {"DTRAIN_NURSERY", variable("DTRAIN_NURSERY")}}));
  const std::string action = variable("DTRAIN_ACTION");
  if (action.starts_with("exit ")) return std::atoi(action.c_str() + 5);
  if (action.starts_with("signal ")) ::raise(std::atoi(action.c_str() + 7));
  if (action == "pause") ::pause();
  return 0;
}
