// Which receive takes which message: the messages that no receive has taken, and the receives without a message.
#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "mailbox/mail_work.h"

namespace dtrain::comm {

// Of one channel, the first that fits is taken, in the order of adding. One thread.
class Matching {
 public:
  void add(SharedMail receive) { lanes_[receive->channel].receives.push_back(std::move(receive)); }
  void add(std::shared_ptr<Arrival> arrival) { lanes_[arrival->channel].arrivals.push_back(std::move(arrival)); }

  // Returns the receive that takes a message from this rank; null: none.
  SharedMail take_receive(int from, Channel channel) {
    return take(channel, &Lane::receives,
                [&](const MailWork& receive) { return receive.peer == from || receive.peer == kAnyRank; });
  }
  // Returns the message that a receive takes; null: none.
  std::shared_ptr<Arrival> take_arrival(int from, Channel channel) {
    return take(channel, &Lane::arrivals,
                [&](const Arrival& arrival) { return arrival.from == from || from == kAnyRank; });
  }
  void clear() { lanes_.clear(); }

 private:
  struct Lane {
    std::list<SharedMail> receives;
    std::list<std::shared_ptr<Arrival>> arrivals;
  };

  template <class One, class Fits>
  std::shared_ptr<One> take(Channel channel, std::list<std::shared_ptr<One>> Lane::*queue, const Fits& fits) {
    const auto lane = lanes_.find(channel);
    if (lane == lanes_.end()) return nullptr;
    auto& all = lane->second.*queue;
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return fits(*one); });
    if (found == all.end()) return nullptr;
    const std::shared_ptr<One> taken = std::move(*found);
    all.erase(found);
    if (lane->second.receives.empty() && lane->second.arrivals.empty()) lanes_.erase(lane);
    return taken;
  }

  std::map<Channel, Lane> lanes_;
};

}  // namespace dtrain::comm
