import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.lookup.LookupFunctionProvider;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.LookupFunction;

/** Connector of a table in memory, for lookup joins: the campaign of each ad, from a file. */
public class CampaignTable implements DynamicTableSourceFactory {
    static final ConfigOption<String> FILE = ConfigOptions.key("file").stringType().noDefaultValue();

    @Override
    public String factoryIdentifier() {
        return "campaigns";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(FILE);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of();
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        helper.validate();
        return new Source(helper.getOptions().get(FILE));
    }

    static final class Source implements LookupTableSource {
        final String file;

        Source(String file) {
            this.file = file;
        }

        @Override
        public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
            return LookupFunctionProvider.of(new Lookup(file));
        }

        @Override
        public DynamicTableSource copy() {
            return new Source(file);
        }

        @Override
        public String asSummaryString() {
            return "campaigns";
        }
    }

    public static final class Lookup extends LookupFunction {
        final String file;
        transient List<RowData>[] rows;

        public Lookup(String file) {
            this.file = file;
        }

        @Override
        @SuppressWarnings("unchecked")
        public void open(FunctionContext context) throws IOException {
            ByteBuffer campaigns = ByteBuffer.wrap(Files.readAllBytes(Path.of(file))).order(ByteOrder.LITTLE_ENDIAN);
            rows = new List[campaigns.remaining() / Integer.BYTES];
            for (int ad = 0; ad < rows.length; ad++) {
                rows[ad] = List.of(GenericRowData.of(ad, campaigns.getInt()));
            }
        }

        @Override
        public Collection<RowData> lookup(RowData key) {
            return rows[key.getInt(0)];
        }
    }
}
