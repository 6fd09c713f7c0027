// Makes tables from functions that visit the values of a row with their keys, as the fields() of records do
// (dtrain/profile/records.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/analysis/export.h"

namespace dtrain::analysis {

using profile::Key;

// A visitor: the cells of a row and, for the first one of a table, its columns.
class TableRow {
 public:
  // `run` and `rank`: the clock of the row's moments, which are converted to rank 0's clock.
  void begin(const RunProfile& run, std::optional<int> rank) {
    cells_.clear();
    run_ = &run;
    rank_ = rank;
  }
  template <typename T>
  void operator()(Key key, const T& value) {
    if constexpr (std::same_as<T, LoaderUsage>) {
      usage_ = value;
    } else {
      if (columns_) columns_->push_back({std::string(key.name), type_of<T>()});
      cells_.push_back(cell(key.form, value));
    }
  }
  void operator()(Key key, const profile::PhaseTimes& phases);
  // Returns the row; the usage of reading a batch follows the other cells.
  const std::vector<Cell>& finish();

  template <typename Fields, typename... Items>
  static std::vector<Column> columns_of(const Fields& fields, const Items&... items) {
    TableRow row;
    row.columns_.emplace();
    fields(row, items...);
    row.finish();
    return std::move(*row.columns_);
  }

 private:
  template <typename T>
  static constexpr bool kIsOptional = requires(const T& value) {
    value.has_value();
  };
  // Returns SQL's name of a type. A Cell of any type is REAL.
  template <typename T>
  static std::string_view type_of() {
    if constexpr (kIsOptional<T>) {
      return type_of<typename T::value_type>();
    } else {
      return std::integral<T> ? "INTEGER" : std::floating_point<T> || std::same_as<T, Cell> ? "REAL" : "TEXT";
    }
  }
  template <typename T>
  Cell cell(Key::Form form, const T& value) const {
    if constexpr (std::same_as<T, Cell>) {
      return value;
    } else if constexpr (kIsOptional<T>) {
      return value ? cell(form, *value) : Cell();
    } else if constexpr (std::integral<T>) {
      const auto number = static_cast<std::int64_t>(value);
      if (form == Key::kMoment) return rank_ ? run_->to_common_ns(*rank_, number) : number;
      return form != Key::kPlain && number < 0 ? Cell() : Cell(number);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<double>(value);
    } else if constexpr (requires { name_of(value); }) {
      return std::string(name_of(value));
    } else {
      return std::string(value);
    }
  }

  const RunProfile* run_ = nullptr;
  std::optional<int> rank_;
  std::vector<Cell> cells_;
  std::optional<std::vector<Column>> columns_;
  std::optional<LoaderUsage> usage_;
};

// Makes a table whose rows have Items: `each` passes them on, with the rank on whose clock they are, and `fields`
// visits their values.
template <typename... Items>
Table make_table(std::string name, auto each, auto fields) {
  return {std::move(name), TableRow::columns_of(fields, Items{}...), [=](const RunProfile& run, const auto& sink) {
            TableRow row;
            each(run, [&](std::optional<int> rank, const Items&... items) {
              row.begin(run, rank);
              fields(row, items...);
              sink(row.finish());
            });
          }};
}

std::vector<Table> host_tables();  // the agents' samples
std::vector<Table> log_tables();   // metrics.jsonl and events.jsonl

}  // namespace dtrain::analysis
