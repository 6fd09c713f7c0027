#include "dtrain/base/background.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "dtrain/base/fd.h"

namespace dtrain {

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

}  // namespace dtrain
