#include "shared_memory/arena_pool.h"

#include <algorithm>
#include <iterator>

namespace dtrain::comm {
namespace {

// Returns the piece that holds the byte, or the end.
auto piece_at(auto& pieces, std::size_t offset) {
  auto piece = pieces.upper_bound(offset);
  if (piece == pieces.begin()) return pieces.end();
  --piece;
  return offset < piece->second.end ? piece : pieces.end();
}

}  // namespace

ArenaPool::ArenaPool(std::size_t capacity, std::size_t page, Release release, const Clock& clock)
    : capacity_(capacity / kGranule * kGranule),
      page_(page),
      release_(std::move(release)),
      clock_(clock),
      period_began_(clock.monotonic()) {
  add_free({0, capacity_});
}

std::optional<std::size_t> ArenaPool::allocate(std::size_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule;
  const std::scoped_lock lock(mutex_);
  const auto found = by_size_.lower_bound({size, 0});
  if (found == by_size_.end()) return std::nullopt;
  const Extent whole{found->second, found->second + found->first};
  const Extent piece{whole.begin, whole.begin + size};
  remove_free(whole);
  if (piece.end < whole.end) add_free({piece.end, whole.end});
  pieces_[piece.begin] = {.end = piece.end};
  add_resident({piece.begin / page_ * page_, (piece.end + page_ - 1) / page_ * page_});
  in_use_ += size;
  peak_ = std::max(peak_, in_use_);
  peak_now_ = std::max(peak_now_, in_use_);
  return piece.begin;
}

bool ArenaPool::free(std::size_t offset) {
  const std::scoped_lock lock(mutex_);
  const auto piece = pieces_.find(offset);
  if (piece == pieces_.end() || piece->second.freed) return false;
  piece->second.freed = true;
  if (piece->second.pins == 0) give_back(piece);
  return true;
}

bool ArenaPool::pin(std::size_t offset, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto piece = piece_at(pieces_, offset);
  if (piece == pieces_.end() || piece->second.freed || bytes > piece->second.end - offset) return false;
  ++piece->second.pins;
  return true;
}

void ArenaPool::unpin(std::size_t offset) {
  const std::scoped_lock lock(mutex_);
  const auto piece = piece_at(pieces_, offset);
  if (piece == pieces_.end() || piece->second.pins == 0) return;
  if (--piece->second.pins == 0 && piece->second.freed) give_back(piece);
}

bool ArenaPool::is_pinned(std::size_t offset) const {
  const std::scoped_lock lock(mutex_);
  const auto piece = piece_at(pieces_, offset);
  return piece != pieces_.end() && piece->second.pins > 0;
}

ArenaStatistics ArenaPool::statistics() const {
  const std::scoped_lock lock(mutex_);
  return {capacity_, in_use_, peak_, resident_bytes_};
}

void ArenaPool::give_back(Pieces::iterator piece) {
  Extent extent{piece->first, piece->second.end};
  pieces_.erase(piece);
  in_use_ -= extent.size();
  auto next = free_.lower_bound(extent.begin);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->second == extent.begin) {
      extent.begin = before->first;
      remove_free({before->first, before->second});
    }
  }
  if (next != free_.end() && next->first == extent.end) {
    extent.end = next->second;
    remove_free({next->first, next->second});
  }
  add_free(extent);
  trim();
}

void ArenaPool::add_free(Extent extent) {
  free_[extent.begin] = extent.end;
  by_size_.emplace(extent.size(), extent.begin);
}

void ArenaPool::remove_free(const Extent& extent) {
  free_.erase(extent.begin);
  by_size_.erase({extent.size(), extent.begin});
}

void ArenaPool::add_resident(Extent pages) {
  auto next = resident_.upper_bound(pages.begin);
  if (next != resident_.begin() && std::prev(next)->second >= pages.begin) --next;
  while (next != resident_.end() && next->first <= pages.end) {
    pages = {std::min(pages.begin, next->first), std::max(pages.end, next->second)};
    resident_bytes_ -= next->second - next->first;
    next = resident_.erase(next);
  }
  resident_[pages.begin] = pages.end;
  resident_bytes_ += pages.size();
}

// The pages are part of one resident extent.
void ArenaPool::remove_resident(const Extent& pages) {
  const auto around = std::prev(resident_.upper_bound(pages.begin));
  const Extent whole{around->first, around->second};
  resident_.erase(around);
  if (whole.begin < pages.begin) resident_[whole.begin] = pages.begin;
  if (pages.end < whole.end) resident_[pages.end] = whole.end;
  resident_bytes_ -= pages.size();
}

std::size_t ArenaPool::most_kept() {
  const Nanoseconds time = clock_.monotonic();
  if (time - period_began_ > kOfLate) {
    peak_before_ = peak_now_;
    peak_now_ = in_use_;
    period_began_ = time;
  }
  const auto used = static_cast<double>(std::max(peak_now_, peak_before_));
  return std::max(kLeastKept, static_cast<std::size_t>(used * kReserve));
}

// Pieces are taken from the beginning of an extent, so its last pages go first.
void ArenaPool::trim() {
  if (resident_bytes_ <= kLeastKept) return;
  const std::size_t kept = most_kept();
  for (auto size = by_size_.rbegin(); size != by_size_.rend() && size->first >= kLeastReleased; ++size) {
    const Extent extent{(size->second + page_ - 1) / page_ * page_, (size->second + size->first) / page_ * page_};
    while (resident_bytes_ > kept) {
      auto last = resident_.lower_bound(extent.end);
      if (last == resident_.begin()) break;
      --last;
      Extent pages{std::max(last->first, extent.begin), std::min(last->second, extent.end)};
      if (pages.begin >= pages.end) break;
      const std::size_t excess = (resident_bytes_ - kept + page_ - 1) / page_ * page_;
      if (pages.size() > excess) pages.begin = pages.end - excess;
      if (!release_(pages)) return;
      remove_resident(pages);
    }
    if (resident_bytes_ <= kept) return;
  }
}

}  // namespace dtrain::comm
