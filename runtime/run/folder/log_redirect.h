// Sends what a rank prints (descriptors 1 and 2, whoever writes to them) into its log file. Where no launcher shows the
// file, a thread copies its new lines to the screen the rank was started on. Restores both descriptors at its end, and
// ends a last line that a full disk has cut short.
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
  // Shows what is in the log so far, then no more of it.
  void stop_copying();
  // To where standard error went before.
  void original_error(std::string_view text) const;
  // To where standard output went before.
  void original_output(std::string_view text) const;

 private:
  std::filesystem::path log_;
  UniqueFd output_;  // what descriptors 1 and 2 were
  UniqueFd error_;
  std::unique_ptr<Screen> screen_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtrain::run
