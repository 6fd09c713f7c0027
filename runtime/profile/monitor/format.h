// The records of a rank and of a monitor as lines of JSON, as docs/profile-format.md describes them. Each function
// appends or returns one line with its newline.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <spdlog/fmt/compile.h>
#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/host/gpus.h"
#include "dtrain/profile/records.h"
#include "monitor/system_sampler.h"
#include "ring.h"

namespace dtrain::profile {

// The text of a record under construction.
using LineBuffer = fmt::memory_buffer;
// Appends text; the arguments are those of fmt::format_to.
template <typename... Args>
void put(LineBuffer& out, Args&&... args) {
  fmt::format_to(std::back_inserter(out), std::forward<Args>(args)...);
}

// Returns the time of a phase as in dumps: the time of train_batch includes its parts.
std::int64_t time_in(const PhaseTimes& times, Phase phase);
// Returns text from shared memory, up to its end or to a 0, without characters that break a line.
std::string plain_text(std::string_view bytes);

// Writes a record as a JSON object, up to close(), by visiting its fields (dtrain/profile/records.h). It formats by
// hand, because the monitor shares the cores with the training.
class FieldWriter {
 public:
  explicit FieldWriter(LineBuffer& out) : out_(out) {}
  void close() {
    if (separator_ == '{') out_.push_back('{');
    out_.push_back('}');
  }

  template <typename T>
  void operator()(Key key, const T& value) {
    if constexpr (std::same_as<T, LoaderUsage>) {
      if (value.batches > 0) T::fields(*this, value);
    } else if (!is_left_out(key.form, value)) {
      begin(key.name);
      write(key, value);
    }
  }

 private:
  template <typename T>
  static bool is_left_out(Key::Form form, const T& value) {
    if constexpr (std::integral<T>) {
      return form == Key::kIfAny ? value == 0
                                 : (form == Key::kIfKnown || form == Key::kTruth) && std::cmp_less(value, 0);
    } else if constexpr (std::same_as<T, std::optional<double>>) {
      return !value || !std::isfinite(*value);
    } else if constexpr (requires { value.has_value(); }) {
      return !value;
    } else if constexpr (requires { value.empty(); }) {
      return form == Key::kIfAny && value.empty();
    } else {
      return false;
    }
  }

  void append(std::string_view text) { out_.append(text.data(), text.data() + text.size()); }
  void begin(std::string_view name) {
    const std::size_t size = out_.size();
    out_.resize(size + name.size() + 4);
    char* to = out_.data() + size;
    *to++ = std::exchange(separator_, ',');
    *to++ = '"';
    to = std::copy(name.begin(), name.end(), to);
    *to++ = '"';
    *to = ':';
  }

  template <typename T>
  void write(const Key& key, const std::optional<T>& value) {
    write(key, *value);
  }
  template <std::integral T>
  void write(const Key& key, T value) {
    if (key.form == Key::kTruth) return append(value != 0 ? "true" : "false");
    const fmt::format_int text(value);
    append({text.data(), text.size()});
  }
  void write(const Key& key, double value) {
    key.form == Key::kNineDigits ? put(out_, FMT_COMPILE("{:.9g}"), value)
                                 : put(out_, FMT_COMPILE("{:.{}f}"), value, key.decimals);
  }
  void write(const Key&, std::string_view text) { put(out_, FMT_COMPILE("\"{}\""), text); }
  void write(const Key& key, const std::string& text) { write(key, std::string_view(text)); }
  template <std::size_t N>
  void write(const Key& key, const char (&bytes)[N]) {
    write(key, std::string_view(plain_text({bytes, N})));
  }
  void write(const Key& key, const PhaseTimes& times) {
    FieldWriter phases(out_);
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      const auto phase = static_cast<Phase>(i);
      const std::int64_t time = key.form == Key::kIfKnown ? times[i] : time_in(times, phase);
      phases({name_of(phase), key.form}, time);
    }
    phases.close();
  }
  void write(const Key&, const std::array<Sketch, kPhaseCount>& sketches) {
    FieldWriter phases(out_);
    for (std::size_t i = 0; i < kPhaseCount; ++i) phases(name_of(static_cast<Phase>(i)), sketches[i]);
    phases.close();
  }
  void write(const Key&, const Sketch& sketch) {
    put(out_, FMT_COMPILE("{{\"count\":{},\"sum\":{},\"min\":{},\"max\":{},\"zeros\":{},\"bins\":["), sketch.count(),
        sketch.sum(), sketch.min(), sketch.max(), sketch.zeros());
    const char* separator = "";
    for (const Sketch::Bin& bin : sketch.bins()) {
      put(out_, FMT_COMPILE("{}{},{}"), std::exchange(separator, ","), bin.index, bin.count);
    }
    append("]}");
  }
  template <typename T>
  void write(const Key& key, const std::vector<T>& list) {
    out_.push_back('[');
    for (const T& item : list) {
      if (&item != &list.front()) out_.push_back(',');
      write(key, item);
    }
    out_.push_back(']');
  }
  template <typename T>
  requires std::is_class_v<T>
  void write(const Key&, const T& record) {
    FieldWriter writer(out_);
    T::fields(writer, record);
    writer.close();
  }

  LineBuffer& out_;
  char separator_ = '{';
};

// Appends {"record":KIND, the fields that `add` adds}, as one line.
void append_line(LineBuffer& out, std::string_view kind, auto&& add) {
  FieldWriter line(out);
  line("record", kind);
  add(line);
  line.close();
  out.push_back('\n');
}
template <typename T>
void append_fields(LineBuffer& out, std::string_view kind, const T& record) {
  append_line(out, kind, [&](FieldWriter& line) { T::fields(line, record); });
}
template <typename T>
std::string line_of(std::string_view kind, const T& record) {
  LineBuffer out;
  append_fields(out, kind, record);
  return fmt::to_string(out);
}

inline constexpr int kDumpSchema = 1;

// Appends a record; nothing for an unknown kind.
void append_record(LineBuffer& out, const Record& record);
// Return a name from shared memory, without characters that break a line.
std::string operation_of(const CollectiveRecord& record);
std::string path_of(const ScopeRecord& scope);
void append_system(LineBuffer& out, const SystemSample& sample);
std::string gpu_line(const host::GpuInfo& gpu);

// Returns the first line. `fields` come first; the fields of `extra` that are not among them follow.
std::string header_line(const Json& fields, const Json& extra, const Clock& clock);

}  // namespace dtrain::profile
