// One line of a dump at a time, parsed and handed on. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "dtrain/analysis/dump_reader.h"

namespace dtrain::analysis {

inline constexpr int kNewestSchema = 1;  // of docs/profile-format.md

enum class LineKind {
  kUnderstood,
  kUnknown,     // of a later version
  kUnreadable,  // no record
  kNewerSchema  // a header whose dump this version must not read
};

class DumpLineReader {
 public:
  DumpLineReader();
  ~DumpLineReader();
  DumpLineReader(const DumpLineReader&) = delete;
  DumpLineReader& operator=(const DumpLineReader&) = delete;

  // `line` as FileLines gives it: the bytes behind it may be read.
  LineKind read(std::string_view line, DumpHandler& handler);
  // Of the last header.
  std::int64_t schema() const { return schema_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::int64_t schema_ = kNewestSchema;
};

}  // namespace dtrain::analysis
