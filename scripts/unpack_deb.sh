# Sourced by others: unpack_deb FOLDER PACKAGE.deb SHA256 ... unpacks packages of fixed versions from the archives of Debian and Ubuntu into a
# folder, without installing them, where the running system lacks them or has older ones. The path of a package begins with its archive.
# DTRAIN_DEBIAN and DTRAIN_UBUNTU name other mirrors.
unpack_deb() {
  local folder=$1 path url mirror sum scratch
  shift
  scratch=$(mktemp -d)
  while [ $# -gt 0 ]; do
    path=${1#*/} sum=$2
    case "$1" in
      debian/*) mirror=${DTRAIN_DEBIAN:-http://deb.debian.org/debian} ;;
      ubuntu/*) mirror=${DTRAIN_UBUNTU:-http://archive.ubuntu.com/ubuntu} ;;
    esac
    url=$mirror/${path//+/%2b}
    if ! /usr/lib/apt/apt-helper download-file "$url" "$scratch/one.deb" "SHA256:$sum" >"$scratch/log" 2>&1; then
      cat "$scratch/log" >&2
      echo "could not fetch $url: DTRAIN_DEBIAN and DTRAIN_UBUNTU name other mirrors" >&2
      rm -rf "$scratch"
      return 1
    fi
    mkdir -p "$folder"
    dpkg-deb --extract "$scratch/one.deb" "$folder"
    rm "$scratch/one.deb"
    shift 2
  done
  rm -rf "$scratch"
}
