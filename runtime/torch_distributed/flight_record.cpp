#include "flight_record.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <torch/csrc/jit/serialization/pickler.h>

namespace dtrain::torch_distributed {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

constexpr const char* kVersion = "2.10";  // of the form, by PyTorch's FlightRecorder.hpp

Dict make_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

List make_list() {
  return List(c10::AnyType::get());
}

// The names that PyTorch's analysis knows.
std::string profiling_name_of(const FlightRecord& record) {
  const std::string name = record.name.data();
  if (record.message == 0) return "dtrain:" + (name == "sparse_all_reduce" ? "all_reduce" : name);
  const std::string own = std::to_string(record.rank), peer = record.peer < 0 ? "?" : std::to_string(record.peer);
  return name == "send" ? "dtrain:send " + own + "->" + peer : "dtrain:recv " + own + "<-" + peer;
}

void put_shapes(Dict& entry, const Shapes& shapes, const char* sizes_key, const char* types_key) {
  List all_sizes = make_list(), types = make_list();
  shapes.for_each([&](at::ScalarType type, const std::vector<std::int64_t>& sizes) {
    List one = make_list();
    for (const std::int64_t size : sizes) one.push_back(size);
    all_sizes.push_back(one);
    types.push_back(std::string(c10::toString(type)));
  });
  entry.insert(sizes_key, all_sizes);
  entry.insert(types_key, types);
}

}  // namespace

void Shapes::add(const std::vector<at::Tensor>& tensors) {
  constexpr std::int64_t kOne = 1 << 16;  // the number of equal tensors is in the upper bits of an entry's first word
  std::size_t last = data_.size();
  for (const at::Tensor& tensor : tensors) {
    const c10::IntArrayRef sizes = tensor.sizes();
    const std::int64_t head =
        kOne | static_cast<std::int64_t>(tensor.scalar_type()) << 8 | static_cast<std::int64_t>(sizes.size());
    if (last < words_ && (data_[last] & (kOne - 1)) == (head & (kOne - 1)) &&
        std::equal(sizes.begin(), sizes.end(), data_.begin() + last + 1)) {
      data_[last] += kOne;
      continue;
    }
    if (words_ + 1 + sizes.size() > data_.size()) return;
    last = words_;
    data_[words_++] = head;
    std::copy(sizes.begin(), sizes.end(), data_.begin() + words_);
    words_ += sizes.size();
  }
}

std::string FlightRecord::text() const {
  std::string text = std::string(name.data()) + " #" + std::to_string(message ? message : sequence);
  if (message)
    text +=
        peer < 0 ? " from any rank" : (text.starts_with("send") ? " to rank " : " from rank ") + std::to_string(peer);
  if (line.number == 0) return text;
  const std::string_view file = line.file.data();
  return text + ", " + std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(line.number);
}

std::string pickle_of(const std::vector<FlightGroup>& groups, const std::vector<FlightView>& views) {
  struct Known {
    const FlightGroup* group;
    std::int64_t id, enqueued, completed;
  };
  std::map<std::int32_t, Known> known;
  Dict configuration = make_dict();
  for (const FlightGroup& group : groups) {
    known.insert({group.place, {&group, static_cast<std::int64_t>(known.size()), 0, 0}});
    Dict one = make_dict();
    one.insert("name", group.name);
    one.insert("desc", group.description);
    one.insert("ranks", group.ranks);
    configuration.insert_or_assign(group.name, one);
  }
  List entries = make_list();
  for (const FlightView& view : views) {
    const FlightRecord& record = view.record;
    Known& in = known.at(record.group);
    const auto sequence = static_cast<std::int64_t>(record.sequence);
    const bool completed = view.ended_ns != 0;
    in.enqueued = sequence;
    if (completed && record.message == 0) in.completed = std::max(in.completed, sequence);

    Dict entry = make_dict();
    entry.insert("record_id", static_cast<std::int64_t>(view.number));
    entry.insert("pg_id", in.id);
    entry.insert("process_group", std::make_tuple(in.group->name, in.group->description));
    entry.insert("collective_seq_id", sequence);
    entry.insert("p2p_seq_id", static_cast<std::int64_t>(record.message));
    entry.insert("op_id", static_cast<std::int64_t>(view.number) + 1);
    entry.insert("profiling_name", profiling_name_of(record));
    entry.insert("time_created_ns", record.created_ns);
    put_shapes(entry, record.inputs, "input_sizes", "input_dtypes");
    put_shapes(entry, record.outputs, "output_sizes", "output_dtypes");
    entry.insert("state", std::string(completed ? "completed" : "started"));
    entry.insert("time_discovered_started_ns", record.created_ns);
    entry.insert("time_discovered_completed_ns", completed ? c10::IValue(view.ended_ns) : c10::IValue());
    if (completed) entry.insert("duration_ms", static_cast<double>(view.ended_ns - record.created_ns) / 1e6);
    entry.insert("retired", completed);
    entry.insert("timeout_ms", record.timeout_ms);
    entry.insert("is_p2p", record.message != 0);
    List frames = make_list();
    if (record.line.number != 0) {
      Dict frame = make_dict();
      frame.insert("name", std::string(record.line.function.data()));
      frame.insert("filename", std::string(record.line.file.data()));
      frame.insert("line", static_cast<std::int64_t>(record.line.number));
      frames.push_back(frame);
    }
    entry.insert("frames", frames);
    entries.push_back(entry);
  }
  Dict status = make_dict();
  for (const auto& [place, one] : known) {
    Dict numbers = make_dict();
    numbers.insert("last_enqueued_collective", one.enqueued);
    numbers.insert("last_started_collective", one.enqueued);
    numbers.insert("last_completed_collective", one.completed);
    status.insert(std::to_string(one.id), numbers);
  }
  Dict all = make_dict();
  all.insert("version", std::string(kVersion));
  all.insert("pg_config", configuration);
  all.insert("pg_status", status);
  all.insert("comm_lib_version", std::string("dtrain"));
  all.insert("entries", entries);

  std::string text;
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { text.append(data, size); }, nullptr, nullptr,
                              nullptr, nullptr, false);
  pickler.protocol();
  pickler.pushIValue(all);
  pickler.stop();
  return text;
}

}  // namespace dtrain::torch_distributed
