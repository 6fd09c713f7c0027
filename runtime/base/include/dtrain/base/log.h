// Logging: a logger is made once in main() and passed to the parts that need it. Thread safe.
#pragma once

#include <memory>
#include <string>

#include <spdlog/logger.h>

namespace dtrain {

using Logger = std::shared_ptr<spdlog::logger>;

// Writes "12:34:56.789 info  message" to standard error. `level`: trace, debug, info, warn, error, off;
// an unknown one is a ConfigError. Warnings and above are flushed at once.
Logger make_stderr_logger(const std::string& level = "info");

// Makes a logger that discards everything, for tests and for libraries used without a log.
Logger make_null_logger();

}  // namespace dtrain
