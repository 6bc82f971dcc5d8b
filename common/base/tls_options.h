// The options of a program's side of TLS: --tls-cert, --tls-key, --tls-ca. CheckTlsFiles checks what they name.
#pragma once

#include "common/base/tls_files.h"

namespace CLI {
class App;
}  // namespace CLI

namespace stemma {

void AddServerTlsOptions(CLI::App* command, TlsFiles& files);
void AddClientTlsOptions(CLI::App* command, TlsFiles& files);

}  // namespace stemma
