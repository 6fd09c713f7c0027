#include "shared_memory/memory.h"

#include "dtrain/base/error.h"

namespace dtrain::comm {

class RegionBuffer final : public Buffer {
 public:
  RegionBuffer(std::shared_ptr<BufferTable> table, std::int32_t id, std::byte* data, std::size_t bytes, PageKind pages)
      : table_(std::move(table)), id_(id), data_(data), bytes_(bytes), pages_(pages) {}
  ~RegionBuffer() override {
    table_->by_address_.erase(data_);
    table_->by_id_.erase(id_);
  }
  std::span<std::byte> bytes() override { return {data_, bytes_}; }
  // An operation is complete here once every rank has done its steps, and only those read this memory (transfer.cpp).
  std::size_t release(std::size_t begin, std::size_t count) override {
    return release_pages(bytes().subspan(begin, count), pages_);
  }

 private:
  std::shared_ptr<BufferTable> table_;
  std::int32_t id_;
  std::byte* data_;
  std::size_t bytes_;
  PageKind pages_;
};

BufferTable::BufferTable(int rank, int world_size, RankNames names, std::shared_ptr<Arena> arena)
    : rank_(rank), names_(std::move(names)), arena_(std::move(arena)) {
  for (int r = 0; arena_ && r < world_size; ++r) {
    arenas_.push_back(arena_->memory_of(names_.members.empty() ? r : names_.members[static_cast<std::size_t>(r)]));
    if (arenas_.back().empty()) throw CommError(names_.of(r) + " has no part in the arena of its communicator");
  }
}

std::unique_ptr<Buffer> BufferTable::add(std::shared_ptr<Region> region, std::size_t bytes) {
  const std::int32_t id = next_++;
  std::byte* const own = region->bases[static_cast<std::size_t>(rank_)];
  by_address_[own] = id;
  const PageKind pages = region->pages;
  by_id_[id] = std::move(region);
  return std::make_unique<RegionBuffer>(shared_from_this(), id, own, bytes, pages);
}

Place BufferTable::locate(const void* data, std::size_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(data);
  if (arena_ && arena_->contains(data, bytes)) {
    return {static_cast<std::size_t>(first - arenas_[static_cast<std::size_t>(rank_)].data()), kInArena};
  }
  auto found = by_address_.upper_bound(first);
  if (found == by_address_.begin()) return {};
  --found;
  const auto offset = static_cast<std::size_t>(first - found->first);
  if (offset + bytes > by_id_.at(found->second)->bytes) return {};
  return {offset, found->second};
}

std::byte* BufferTable::resolve(int rank, const Place& place, std::size_t bytes) const {
  if (place.buffer == kNowhere) return nullptr;
  if (place.buffer == kInArena && arena_) return arenas_[static_cast<std::size_t>(rank)].data() + place.offset;
  const auto found = by_id_.find(place.buffer);
  if (found == by_id_.end() || place.offset + bytes > found->second->bytes) {
    throw CommError(names_.of(rank) + " uses buffer " + std::to_string(place.buffer) + ", which " + names_.of(rank_) +
                    " has released");
  }
  return found->second->bases[static_cast<std::size_t>(rank)] + place.offset;
}

}  // namespace dtrain::comm
