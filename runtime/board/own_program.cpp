#include "own_program.h"

#include <fcntl.h>

#include <thread>

#include <sys/resource.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"

namespace dtrain::board {

using std::chrono::steady_clock;

Called call_dtrain(const std::vector<std::string>& arguments, const CallOptions& options) {
  constexpr int kLowest = 19;
  const auto end = steady_clock::now() + options.longest;
  Pipe output = make_pipe(), errors = make_pipe();
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions process_options;
  process_options.command = {executable_path().string()};
  process_options.command.insert(process_options.command.end(), arguments.begin(), arguments.end());
  process_options.fds = {{0, nothing.get()}, {1, output.writer.get()}, {2, errors.writer.get()}};
  process_options.working_folder = options.working_folder;
  Process process = Process::start(process_options);
  if (options.in_background) ::setpriority(PRIO_PROCESS, static_cast<id_t>(process.pid()), kLowest);
  output.writer.reset();
  errors.writer.reset();
  const auto text = read_to_end(output.reader.get(), end);
  if (!text) {
    throw Error("dtrain " + arguments.front() + " took longer than " + count_of(options.longest.count(), "minute") +
                " and was stopped");
  }
  const auto said = read_to_end(errors.reader.get(), steady_clock::now() + std::chrono::seconds(1));
  const ExitStatus status = process.wait();
  Called called{.success = status.success(), .output = *text, .errors = std::string(trimmed(said.value_or("")))};
  if (!called.success && called.errors.empty()) called.errors = status.describe();
  return called;
}

}  // namespace dtrain::board
