#include "run_services.h"

#include "dtrain/rank/rank_session.h"

namespace dtrain::train {

RunServices services_of(rank::RankSession& session) {
  return {session.world(),
          session.control(),
          session.communicator(),
          session.device_communicator(),
          session.recorder(),
          session.clock(),
          session.log(),
          [&session](const std::string& key, const Json& value) { session.update_plan(key, value); },
          [&session](const std::string& event, const Json& fields) { session.write_event(event, fields); }};
}

}  // namespace dtrain::train
