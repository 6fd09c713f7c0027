// A part of a step that has a name of its own. Recorder::scope() begins it; it ends with this object, also when an
// exception leaves its block. Scopes may be nested; a scope within another has the path "outer/inner", and its time is
// part of the outer scope's time. A scope does not change the phases of its step: its time lies within them.
//
// Only the training thread uses it. The recorder must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::profile {

class Recorder;

class [[nodiscard]] Scope {
 public:
  static constexpr std::size_t kMostPaths = 64;      // different ones in a process
  static constexpr std::size_t kMostPathBytes = 63;  // of one path

  ~Scope();
  Scope& operator=(Scope&&) = delete;

 private:
  friend class Recorder;
  Scope(Recorder& recorder, std::uint64_t number) : recorder_(recorder), number_(number) {}

  Recorder& recorder_;
  std::uint64_t number_;
};

}  // namespace dtrain::profile
