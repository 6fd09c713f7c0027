// Redirects what a rank prints (file descriptors 1 and 2, also from libraries) into its log file. A thread copies new
// lines of the file to the screen on which the rank was started. The destructor restores both file descriptors and ends
// a last line that a full disk has cut short.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/fd.h"
#include "folder/screen.h"

namespace dtrain::run {

class LogRedirect {
 public:
  // `prefix` goes before every line on the screen. `terminal`: the progress may be redrawn there.
  LogRedirect(const std::filesystem::path& log, int rank, std::string prefix, bool terminal, const Clock& clock);
  ~LogRedirect();
  LogRedirect(const LogRedirect&) = delete;
  LogRedirect& operator=(const LogRedirect&) = delete;

  Screen& screen() { return *screen_; }
  int output() const { return output_.get(); }  // where standard output went before
  // Shows the rest of the log, then stops copying it.
  void stop_copying();
  // Writes to where standard error went before.
  void original_error(std::string_view text) const;
  // Writes to where standard output went before.
  void original_output(std::string_view text) const;

 private:
  std::filesystem::path log_;
  UniqueFd output_;  // file descriptors 1 and 2 as they were
  UniqueFd error_;
  std::unique_ptr<Screen> screen_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::run
