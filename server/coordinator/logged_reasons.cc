#include "server/coordinator/logged_reasons.h"

#include "glog/logging.h"

namespace stemma::server {

void Log(const LoggedReason& reason) {
  switch (reason.level) {
    case LogLevel::kError:
      LOG(ERROR) << reason.text;
      return;
    case LogLevel::kWarning:
      LOG(WARNING) << reason.text;
      return;
    default:
      LOG(INFO) << reason.text;
  }
}

}  // namespace stemma::server
