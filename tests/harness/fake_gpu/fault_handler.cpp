// What happens when the host touches device memory?
#include <signal.h>
#include <unistd.h>

#include <string>

#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

struct sigaction before {};

void on_fault(int signal, siginfo_t* info, void* context) {
  Machine& all = machine();
  if (all.memory.is_device(info->si_addr)) {
    std::string text = "fake GPU: the host touches memory of a device";
    if (all.mutex.try_lock()) {  // else the thread that holds it does not get to free anything any more
      const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
      text +=
          ": cuda:" + std::to_string(all.memory.device_of(info->si_addr)) + ", memory " + all.memory.describe(address);
      if (const auto write = all.shadow.last_write(address)) text += "; last written by " + std::string(write->what);
      all.report.add(text);
    }
    text += '\n';
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  } else if ((before.sa_flags & SA_SIGINFO) != 0) {
    return before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(signal);
  }
  ::signal(SIGSEGV, SIG_DFL);                // the access is made again, and ends the process
  if (info->si_code <= 0) ::raise(SIGSEGV);  // there was no access: a signal that was sent
}

}  // namespace

void install_fault_handler() {
  struct sigaction action {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, &before);
}

}  // namespace dtrain::test::fake_gpu
