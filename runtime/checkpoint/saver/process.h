// What Saver and the process dtrain-saver share: their messages on a UNIX socket, one JSON line each, and priorities. A
// message is sent as a memfd, so that sending never waits for the reader. Any thread.
#pragma once

#include <optional>
#include <string>

#include <sys/types.h>

#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/saver.h"

namespace dtrain::checkpoints {

inline constexpr int kSocketFd = 3;  // the descriptors of dtrain-saver's main()
inline constexpr int kMemoryFd = 4;
inline constexpr int kLockFd = 5;  // the storage's lock file, if the settings have "locked"

Json to_json(const SaverOptions& options);
SaverOptions saver_options_from(const Json& json);  // Json::exception if malformed, here and below

// A request whose state is still text. The text follows the request's line, so that the saver need not parse it.
struct SaveOrder {
  SaveRequest request;  // without the state
  std::string state;    // contents of state.json
};
std::string to_message(const SaveRequest& request);
SaveOrder save_order_from(const std::string& message);

Json to_json(const SaveResult& result);
SaveResult save_result_from(const Json& json);

// False if the peer has closed the socket. SystemError.
bool send_message(UnixSocket& socket, std::string_view message);
// Returns a message; empty: the peer has closed the socket, or none came in time (sets `timed_out`). SystemError.
std::optional<std::string> receive_message(UnixSocket& socket, std::chrono::milliseconds timeout, bool* timed_out);

// The saver's priorities for the processor and the disk, relative to training. Changes that the kernel forbids are
// skipped.
//
// Gives the calling thread only processor time that no other thread wants (the lowest niceness if the kernel would not
// let the user leave idle priority), and the disk when it is idle.
void step_behind_training();
// Gives all threads of the process a share of the processor again. Threads that called step_behind_training() get a
// hundredth of the share of a thread of training, for a user cannot take niceness back.
void leave_idle_priority(pid_t process);

}  // namespace dtrain::checkpoints
