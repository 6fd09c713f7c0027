#include "exported/model_json.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::exported {

namespace {

constexpr std::size_t kDeepestJson = 200;
constexpr std::size_t kMostNodes = 100'000;      // a transformer has 50 for each layer
constexpr std::size_t kMostValues = 12'000'000;  // a node has 100; a value takes up to 150 bytes
constexpr std::array<std::string_view, 3> kExplanations{"from_node", "torch_fn", "custom"};

// Builds the JSON value from the parser's events. The parser stops when an event returns false.
class ValueMaker final : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string problem;  // empty: none

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (left_out_ > 0) return true;
    if (name == "target" && ++nodes_ > kMostNodes)
      return stop("has more than " + std::to_string(kMostNodes) + " operators");
    leave_out_next_ = std::find(kExplanations.begin(), kExplanations.end(), name) != kExplanations.end();
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop("is no JSON from byte " + std::to_string(position) + " on");
  }

 private:
  bool stop(std::string why) {
    if (problem.empty()) problem = std::move(why);
    return false;
  }

  // Stores the value and returns its address; null: the value is left out.
  Json* place(Json value) {
    if (left_out_ > 0) return nullptr;
    if (std::exchange(leave_out_next_, false)) return nullptr;
    ++values_;
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool add(Json value) {
    place(std::move(value));
    return values_ <= kMostValues || stop("has more than " + std::to_string(kMostValues) + " values");
  }

  bool open(Json value) {
    if (++depth_ > kDeepestJson) return stop("is nested too deeply");
    // An open value keeps its address: only the innermost open value grows.
    if (Json* const placed = place(std::move(value))) {
      open_.push_back(placed);
    } else {
      ++left_out_;
    }
    return values_ <= kMostValues || stop("has more than " + std::to_string(kMostValues) + " values");
  }

  bool close() {
    --depth_;
    if (left_out_ > 0) {
      --left_out_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  std::vector<Json*> open_;
  std::string key_;
  std::size_t depth_ = 0, left_out_ = 0, nodes_ = 0, values_ = 0;
  bool leave_out_next_ = false;
};

}  // namespace

Json parse_json(const std::string& text) {
  ValueMaker maker;
  if (!Json::sax_parse(text, &maker)) throw Error(maker.problem.empty() ? "is no JSON" : maker.problem);
  return std::move(maker.root);
}

}  // namespace dtrain::exported
