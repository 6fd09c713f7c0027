// What Saver and the process dtrain-saver send to each other over a UNIX socket: one JSON line. A message of any length
// travels as a memfd, so that sending it never waits for the reader. Any thread.
#pragma once

#include <optional>
#include <string>

#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/saver.h"

namespace dtrain::checkpoints {

inline constexpr int kSocketFd = 3;  // what main() of dtrain-saver expects
inline constexpr int kMemoryFd = 4;
inline constexpr int kLockFd = 5;  // the storage's lock file, where the settings say "locked"

Json to_json(const SaverOptions& options);
SaverOptions saver_options_from(const Json& json);  // Json::exception where it is malformed, here and below

// The state's text follows the request's line, so that the saver need not read it.
struct SaveOrder {
  SaveRequest request;  // without its state
  std::string state;    // what state.json is to contain
};
std::string to_message(const SaveRequest& request);
SaveOrder save_order_from(const std::string& message);

Json to_json(const SaveResult& result);
SaveResult save_result_from(const Json& json);

// False where the peer is gone. SystemError.
bool send_message(UnixSocket& socket, std::string_view message);
// Empty where the peer is gone or nothing came in time (then `timed_out` is set). SystemError.
std::optional<std::string> receive_message(UnixSocket& socket, std::chrono::milliseconds timeout, bool* timed_out);

}  // namespace dtrain::checkpoints
