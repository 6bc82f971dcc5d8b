#include "common/base/open_ssl.h"

#include <openssl/crypto.h>

#include "glog/logging.h"

namespace stemma {

void KeepOpenSslAtExit() { CHECK_EQ(OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr), 1); }

}  // namespace stemma
