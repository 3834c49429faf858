#!/bin/sh
# Runs at the end of the node image's build (cwd /opt/simhw): chronyd must keep its simulated faults over a restart.
set -eu
mkdir -p /etc/systemd/system/chrony.service.d
printf '[Service]\nExecStartPost=-+/opt/simhw/bin/simhw chrony-started\n' > /etc/systemd/system/chrony.service.d/simhw.conf
