#include "flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/comm/host_share.h"

namespace dtrain::torch_distributed {

struct FlightSlot {
  std::atomic<std::uint64_t> number{0};   // of its operation, from 1 on; 0 while it is written
  std::atomic<std::int64_t> ended_ns{0};  // 0: it has not ended
  FlightRecord record;
};

struct FlightRing {
  static constexpr std::size_t kSlots = 2'000;          // as many as PyTorch's recorder has
  static constexpr std::size_t kGroupBytes = 64 << 10;  // some thousand groups
  std::atomic<std::int64_t> written_ns{0};              // in the first ring of a host: when its files were last written
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint32_t> group_bytes{0};
  std::array<char, kGroupBytes> groups;  // of each: name, description and ranks, with a zero at the end
  std::array<FlightSlot, kSlots> slots;
};

namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr std::chrono::seconds kPublished{2};  // between hosts the last operations are at most this old
constexpr std::chrono::milliseconds kAsked{500};
constexpr std::chrono::seconds kBetweenFiles{5};  // the ranks of a host fail one after the other
constexpr std::size_t kMostTexts = 4;

std::int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(system_clock::now().time_since_epoch()).count();
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// Reads a slot that its rank may be writing. False: it was.
bool read(const FlightSlot& slot, FlightView& view) {
  const std::uint64_t number = slot.number.load(std::memory_order_acquire);
  view.ended_ns = slot.ended_ns.load(std::memory_order_relaxed);
  std::memcpy(static_cast<void*>(&view.record), &slot.record, sizeof view.record);
  std::atomic_thread_fence(std::memory_order_acquire);
  view.number = number - 1;
  return number != 0 && slot.number.load(std::memory_order_relaxed) == number;
}

std::vector<FlightView> views_of(const FlightRing& ring) {
  std::vector<FlightView> views;
  const std::uint64_t operations = ring.operations.load(std::memory_order_acquire);
  const std::uint64_t first = operations > FlightRing::kSlots ? operations - FlightRing::kSlots : 0;
  for (std::uint64_t i = first; i < operations; ++i) {
    FlightView view;
    if (read(ring.slots[i % FlightRing::kSlots], view) && view.number == i) views.push_back(view);
  }
  return views;
}

std::vector<FlightGroup> groups_of(const FlightRing& ring) {
  std::vector<FlightGroup> groups;
  const char* const end = ring.groups.data() + ring.group_bytes.load(std::memory_order_acquire);
  for (const char* at = ring.groups.data(); at < end;) {
    FlightGroup group{
        .place = static_cast<std::int32_t>(at - ring.groups.data()), .name = {}, .description = {}, .ranks = {}};
    for (std::string* const text : {&group.name, &group.description, &group.ranks}) {
      *text = at;
      at += text->size() + 1;
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// The newest collective; if there is none, the newest message.
std::string last_text(const FlightRing& ring) {
  const std::uint64_t operations = ring.operations.load(std::memory_order_acquire);
  std::string message;
  for (std::uint64_t i = operations; i > 0 && i + FlightRing::kSlots > operations; --i) {
    FlightView view;
    if (!read(ring.slots[(i - 1) % FlightRing::kSlots], view)) continue;
    const std::string text = view.record.text() + (view.ended_ns != 0 ? " (complete)" : "");
    if (view.record.message == 0) return text;
    if (message.empty()) message = text;
  }
  return message.empty() ? "none yet" : message;
}

std::string key_of(int host) {
  return "flight/" + std::to_string(host);
}

std::mutex newest_mutex;
std::weak_ptr<FlightRecorder> newest_recorder;

}  // namespace

// Publishes the last operations of this host's ranks for the other hosts.
class FlightRecorder::Publisher {
 public:
  Publisher(comm::ControlPlane& control, const FlightRecorder& recorder)
      : control_(control), recorder_(recorder), thread_([this] { run(); }) {}
  ~Publisher() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_one();
    thread_.join();
  }
  Publisher& operator=(Publisher&&) = delete;

 private:
  void run() {
    std::string published;
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, kPublished, [this] { return stopping_; })) {
      Json texts = Json::object();
      for (int rank = 0; rank < static_cast<int>(recorder_.hosts_.size()); ++rank) {
        if (const FlightRing* const ring = recorder_.ring_of(rank)) texts[std::to_string(rank)] = last_text(*ring);
      }
      if (to_line(texts) == published) continue;
      published = to_line(texts);
      try {
        control_.set(key_of(recorder_.hosts_[static_cast<std::size_t>(recorder_.rank_)]), published);
      } catch (const std::exception&) {  // the world has failed
        return;
      }
    }
  }

  comm::ControlPlane& control_;
  const FlightRecorder& recorder_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

FlightRecorder::FlightRecorder(comm::ControlPlane& control, std::vector<int> hosts, std::vector<int> names)
    : rank_(control.world().rank), hosts_(std::move(hosts)), names_(std::move(names)), control_(&control) {
  const auto ranks = static_cast<std::size_t>(control.world().local_size);
  memory_ = comm::share_on_host(
      control, "the record of the last operations",
      [&] {
        SharedMemory memory = SharedMemory::create("dtrain-flight", ranks * sizeof(FlightRing));
        for (std::size_t i = 0; i < ranks; ++i) new (memory.data() + i * sizeof(FlightRing)) FlightRing;
        return memory;
      },
      {}, comm::HostAccess::kWrite);
  memory_.close_descriptor();
  own_ = const_cast<FlightRing*>(ring_of(rank_));
  const bool several_hosts = *std::max_element(hosts_.begin(), hosts_.end()) > 0;
  if (several_hosts && control.world().local_rank == 0) publisher_ = std::make_unique<Publisher>(control, *this);
}

FlightRecorder::~FlightRecorder() {
  close();
}

void FlightRecorder::close() {
  publisher_.reset();
  const std::scoped_lock lock(control_mutex_);
  control_ = nullptr;
}

const FlightRing* FlightRecorder::ring_of(int rank) const {
  const int host = hosts_[static_cast<std::size_t>(rank_)];
  if (hosts_[static_cast<std::size_t>(rank)] != host) return nullptr;
  const auto place = std::count(hosts_.begin(), hosts_.begin() + rank, host);
  return std::launder(
      reinterpret_cast<const FlightRing*>(memory_.data() + static_cast<std::size_t>(place) * sizeof(FlightRing)));
}

std::int32_t FlightRecorder::add_group(const std::string& name, const std::string& description,
                                       const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  for (const int rank : ranks) numbers.push_back(std::to_string(rank));
  const std::string text = name + '\0' + description + '\0' + "[" + join(numbers, ", ") + "]" + '\0';
  const std::scoped_lock lock(mutex_);
  const std::uint32_t place = own_->group_bytes;
  if (place + text.size() > FlightRing::kGroupBytes) return -1;
  std::copy(text.begin(), text.end(), own_->groups.begin() + place);
  own_->group_bytes.store(place + static_cast<std::uint32_t>(text.size()), std::memory_order_release);
  return static_cast<std::int32_t>(place);
}

FlightSlot* FlightRecorder::add(const FlightRecord& record) {
  if (record.group < 0) return nullptr;
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = own_->operations.load(std::memory_order_relaxed);
  FlightSlot& slot = own_->slots[number % FlightRing::kSlots];
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.ended_ns.store(0, std::memory_order_relaxed);
  slot.record = record;
  slot.record.created_ns = wall_ns();
  slot.number.store(number + 1, std::memory_order_release);
  own_->operations.store(number + 1, std::memory_order_release);
  return &slot;
}

std::uint64_t FlightRecorder::number_of(const FlightSlot& slot) {
  return slot.number.load(std::memory_order_relaxed);
}

void FlightRecorder::end(FlightSlot& slot, std::uint64_t number) {
  if (slot.number.load(std::memory_order_relaxed) == number) slot.ended_ns.store(wall_ns(), std::memory_order_relaxed);
}

std::string FlightRecorder::text_of(const FlightSlot& slot, std::uint64_t number) {
  FlightView view;
  return read(slot, view) && view.number + 1 == number ? view.record.text() : std::string();
}

std::string FlightRecorder::last_text_of(int rank) const {
  if (const FlightRing* const ring = ring_of(rank)) return last_text(*ring);
  const std::scoped_lock lock(control_mutex_);
  try {
    const auto value =
        control_ ? control_->get_within(key_of(hosts_[static_cast<std::size_t>(rank)]), kAsked) : std::nullopt;
    return value ? Json::parse(*value).value(std::to_string(rank), std::string()) : std::string();
  } catch (const std::exception&) {  // the world has failed
    return {};
  }
}

std::string FlightRecorder::last_of(const std::vector<int>& ranks) const {
  std::map<std::string, std::vector<std::string>> ranks_of_text;
  for (const int rank : ranks) {
    const std::string name = std::to_string(names_[static_cast<std::size_t>(rank)]);
    if (std::string text = last_text_of(rank); !text.empty()) ranks_of_text[text].push_back(name);
  }
  std::string all;
  std::size_t texts = 0;
  for (const auto& [text, names] : ranks_of_text) {
    if (++texts > kMostTexts) return all + "; …";
    all += (all.empty() ? "last collective of rank" : "; of rank") + std::string(names.size() > 1 ? "s " : " ") +
           join(names, ", ") + ": " + text;
  }
  return all;
}

void FlightRecorder::write_to(const std::string& path, int rank) const {
  const FlightRing& ring = *ring_of(rank);
  const std::vector<FlightView> views = views_of(ring);
  const std::string pickle =
      pickle_of(groups_of(ring), views);  // these are the groups of all views, because they come later
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    std::filesystem::create_directories(folder);
  }
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file << pickle;
  file.close();
  if (!file) throw SystemError("cannot write " + partial, errno);
  std::filesystem::rename(partial, path);
}

std::string FlightRecorder::write(const std::string& prefix) const {
  const std::string path = prefix + std::to_string(names_[static_cast<std::size_t>(rank_)]);
  write_to(path, rank_);
  return path;
}

std::string FlightRecorder::write_after_failure() const {
  std::string prefix = environment("TORCH_FR_DUMP_TEMP_FILE");
  if (const std::string folder = environment("DTRAIN_RUN_DIR"); prefix.empty() && !folder.empty()) {
    prefix = folder + "/flight_record/rank_";
  }
  if (prefix.empty()) return {};
  const std::int64_t when =
      std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
  auto& written = std::launder(reinterpret_cast<FlightRing*>(memory_.data()))->written_ns;
  std::int64_t before = written.load();
  const std::int64_t least = std::chrono::nanoseconds(kBetweenFiles).count();
  if ((before == 0 || when - before > least) && written.compare_exchange_strong(before, when)) {
    try {
      for (int rank = 0; rank < static_cast<int>(hosts_.size()); ++rank) {
        if (ring_of(rank)) write_to(prefix + std::to_string(names_[static_cast<std::size_t>(rank)]), rank);
      }
    } catch (const std::exception& error) {
      return std::string("the record of the last operations is not written: ") + error.what();
    }
  }
  return "record of the last operations: " + prefix + "*";
}

std::shared_ptr<FlightRecorder> FlightRecorder::newest() {
  const std::scoped_lock lock(newest_mutex);
  return newest_recorder.lock();
}

void FlightRecorder::set_newest(const std::shared_ptr<FlightRecorder>& recorder) {
  const std::scoped_lock lock(newest_mutex);
  newest_recorder = recorder;
}

}  // namespace dtrain::torch_distributed
