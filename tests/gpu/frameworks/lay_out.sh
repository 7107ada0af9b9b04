#!/bin/bash
# Lays out the folder that `pack` makes, from the root of the tree: lay_out.sh FOLDER WHEELS SETTING_ROWS
set -euo pipefail
folder=$1 wheels=$2 rows=$3
mkdir -p "$folder/site" "$folder/programs" "$folder/bin" "$folder/openssl" "$folder/src/frameworks/python"
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
mv "$folder"/site/pyannulus-*.data/scripts/annulus-run "$folder/bin/"
chmod +x "$folder/bin/annulus-run"
rm -r "$folder"/site/pyannulus-*.data "$folder"/site/pyannulus/_core.*.so
cp frameworks/python/*.cc frameworks/python/*.h frameworks/python/core.map "$rows" "$folder/src/frameworks/python/"
cp collectives/annulus.h "$folder/src/"
cp tests/frameworks/{array_cases,torch_rank}.py tests/frameworks/torch_cuda/torch_cuda_{tensors,real,ranks,graphs}.py tests/gpu/frameworks/*.py "$folder/programs/"
for library in libssl.so.3 libcrypto.so.3; do
  cp -L "$(/sbin/ldconfig -p | awk -v name="$library" '$1 == name { print $NF; exit }')" "$folder/openssl/"
done
install -m 755 tests/gpu/frameworks/parts "$folder/run"
