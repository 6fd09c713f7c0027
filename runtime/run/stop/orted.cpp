#include "stop/orted.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

namespace dtrain::run {
namespace {

constexpr auto kGrace = std::chrono::milliseconds(500);

bool is_orted(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  return std::getline(file, name) && name == "orted";
}

}  // namespace

void end_daemon_above() {
  const pid_t parent = ::getppid();
  if (!is_orted(parent)) return;
  ::kill(parent, SIGTERM);
  std::this_thread::sleep_for(kGrace);
  if (::getppid() == parent && is_orted(parent)) ::kill(parent, SIGKILL);
}

}  // namespace dtrain::run
