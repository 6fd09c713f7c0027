// The last collectives of the ranks, in the form of PyTorch's flight recorder.
#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <vector>

#include "launch/hanging_ranks.h"

namespace dtrain::launcher {
namespace {

constexpr const char* kVersion = "2.10";  // of the form, by PyTorch's FlightRecorder.hpp
constexpr std::streamoff kBytesRead = 256 << 10;
constexpr std::size_t kMostEntries = 500;

template <typename Number>
void put_number(std::string& pickle, Number number, bool big_endian = false) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  if (big_endian) std::reverse(std::begin(bytes), std::end(bytes));
  pickle.append(bytes, sizeof number);
}

void put(std::string& pickle, const Json& value) {
  constexpr char kMark = '(';
  switch (value.type()) {
    case Json::value_t::boolean:
      pickle += value.get<bool>() ? '\x88' : '\x89';
      return;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      pickle += "\x8a\x08";  // LONG1 of eight bytes
      return put_number(pickle, value.get<std::int64_t>());
    case Json::value_t::number_float:
      pickle += 'G';
      return put_number(pickle, std::bit_cast<std::uint64_t>(value.get<double>()), /*big_endian=*/true);
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      pickle += 'X';
      put_number(pickle, static_cast<std::uint32_t>(text.size()));
      pickle += text;
      return;
    }
    case Json::value_t::array:
      pickle += ']';
      pickle += kMark;
      for (const Json& item : value) put(pickle, item);
      pickle += 'e';
      return;
    case Json::value_t::object:
      pickle += '}';
      pickle += kMark;
      for (const auto& [name, item] : value.items()) {
        put(pickle, name);
        put(pickle, item);
      }
      pickle += 'u';
      return;
    default:
      pickle += 'N';
  }
}

// The names that PyTorch's analysis knows. It knows none for the making of memory.
std::string name_for_torch(const std::string& operation) {
  if (operation == "reduce_parts") return "dtrain:reduce_scatter";
  if (operation == "gather_parts") return "dtrain:all_gather";
  return "dtrain:" + operation;
}

Json entry_of(std::int64_t number, const std::string& operation, std::uint64_t sequence, std::uint64_t bytes,
              std::int64_t created_ns, std::int64_t ended_ns) {
  const bool completed = ended_ns > 0;
  const Json sizes = Json::array({Json::array({bytes})}), types = Json::array({"Byte"});
  Json entry = {{"record_id", number},
                {"pg_id", 0},
                {"process_group", Json::array({"0", "default_pg"})},
                {"collective_seq_id", sequence},
                {"p2p_seq_id", 0},
                {"op_id", number + 1},
                {"profiling_name", name_for_torch(operation)},
                {"time_created_ns", created_ns},
                {"input_sizes", sizes},
                {"input_dtypes", types},
                {"output_sizes", sizes},
                {"output_dtypes", types},
                {"state", completed ? "completed" : "started"},
                {"time_discovered_started_ns", created_ns},
                {"time_discovered_completed_ns", completed ? Json(ended_ns) : Json()},
                {"retired", completed},
                {"timeout_ms", 0},
                {"is_p2p", false},
                {"frames", Json::array()}};
  if (completed) entry["duration_ms"] = static_cast<double>(ended_ns - created_ns) / 1e6;
  return entry;
}

// Returns the records of collectives at the end of a rank's file.
std::vector<Json> last_collectives(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  in.seekg(std::max<std::streamoff>(0, size - kBytesRead));
  std::vector<Json> records;
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"collective\"") == std::string::npos) continue;
    Json record = Json::parse(line, nullptr, false);
    if (record.is_object() && record.value("record", "") == "collective") records.push_back(std::move(record));
  }
  if (records.size() > kMostEntries) records.erase(records.begin(), records.end() - kMostEntries);
  return records;
}

}  // namespace

std::string pickle_of(const Json& value) {
  std::string pickle = "\x80\x02";
  put(pickle, value);
  return pickle + ".";
}

Json flight_record(const std::filesystem::path& records, int world_size, const PulsePage* page) {
  Json entries = Json::array();
  std::uint64_t completed = 0, started = 0;
  for (const Json& record : last_collectives(records)) {
    completed = started = record.value("sequence", std::uint64_t{0});
    entries.push_back(entry_of(std::ssize(entries), record.value("operation", "barrier"), completed,
                               record.value("bytes", std::uint64_t{0}), record.value("enqueued_ns", std::int64_t{0}),
                               record.value("ended_ns", std::int64_t{1})));
  }
  const std::string operation =
      page && page->waits.load(std::memory_order_acquire) != 0 ? page->operation.data() : std::string();
  if (!operation.empty() && !operation.starts_with("allocate") && page->sequence > started) {
    started = page->sequence;
    entries.push_back(entry_of(std::ssize(entries), operation, started, page->bytes, page->waits_since, 0));
  }
  std::string ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks += (rank == 0 ? "[" : ", ") + std::to_string(rank);
  const Json group = {{"name", "0"}, {"desc", "default_pg"}, {"ranks", ranks + "]"}};
  const Json status = {{"last_enqueued_collective", started},
                       {"last_started_collective", started},
                       {"last_completed_collective", completed}};
  return {{"version", kVersion},
          {"pg_config", {{"0", group}}},
          {"pg_status", {{"0", status}}},
          {"comm_lib_version", "dtrain"},
          {"entries", entries}};
}

}  // namespace dtrain::launcher
